// Keys that order as elements do, NaN as the largest; with its position an element differs from every other one, so that no order of
// merging changes the order of equal ones. Of 32-bit keys both are one number.
struct LongEntry { unsigned long long key; unsigned at; };
unsigned sort_key(float x) {
  const unsigned u = __float_as_uint(x == 0 ? 0.0f : x);
  return x != x ? ~0u : u >> 31 ? ~u : u | 0x80000000u;
}
unsigned long long sort_key(double x) {
  const unsigned long long u = (unsigned long long)__double_as_longlong(x == 0 ? 0.0 : x);
  return x != x ? ~0ull : u >> 63 ? ~u : u | 0x8000000000000000ull;
}
unsigned sort_key(int x) { return (unsigned)x ^ 0x80000000u; }
unsigned sort_key(bool x) { return x; }
unsigned long long sort_key(long long x) { return (unsigned long long)x ^ 0x8000000000000000ull; }
unsigned long long sort_entry(unsigned key, unsigned at) { return (unsigned long long)key << 32 | at; }
LongEntry sort_entry(unsigned long long key, unsigned at) { return {key, at}; }
bool sorts_before(unsigned long long a, unsigned long long b) { return a < b; }
bool sorts_before(LongEntry a, LongEntry b) { return a.key < b.key || (a.key == b.key && a.at < b.at); }
unsigned sorted_at(unsigned long long entry) { return (unsigned)entry; }
unsigned sorted_at(LongEntry entry) { return entry.at; }

// Sorts the n entries at a by all threads of the block, b being as much memory again; gives where the result is. Runs of eight by a
// thread each, then runs are merged, every thread finding where its eight results begin.
template <int THREADS, class E> E* sort_block(E* a, E* b, int n) {
  for (int first = threadIdx.x * 8; first < n; first += THREADS * 8) {
    E v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) if (first + i < n) v[i] = a[first + i];
#pragma unroll
    for (int round = 0; round < 8; ++round)
#pragma unroll
      for (int i = round % 2; i < 7; i += 2)
        if (first + i + 1 < n && sorts_before(v[i + 1], v[i])) { const E w = v[i]; v[i] = v[i + 1]; v[i + 1] = w; }
#pragma unroll
    for (int i = 0; i < 8; ++i) if (first + i < n) a[first + i] = v[i];
  }
  __syncthreads();
  for (int width = 8; width < n; width *= 2) {
    for (int first = threadIdx.x * 8; first < n; first += THREADS * 8) {
      const int base = first / (2 * width) * (2 * width);
      const int middle = base + width < n ? base + width : n, end = n - base < 2 * width ? n : base + 2 * width;
      const int diagonal = first - base;
      int low = diagonal > end - middle ? diagonal - (end - middle) : 0, high = diagonal < middle - base ? diagonal : middle - base;
      while (low < high) {
        const int half = (low + high) / 2;
        if (sorts_before(a[middle + diagonal - 1 - half], a[base + half])) high = half;
        else low = half + 1;
      }
      int i = base + low, j = middle + diagonal - low;
      for (int k = first; k < first + 8 && k < end; ++k) b[k] = j >= end || (i < middle && !sorts_before(a[j], a[i])) ? a[i++] : a[j++];
    }
    __syncthreads();
    E* const other = a; a = b; b = other;
  }
  return a;
}

// Puts the `count` first of n entries, which `entry` gives by their positions, to `chosen` in any order: digit by digit from the
// highest on, until those that begin with the digits found are all of the count.
template <int THREADS, class F> void select_block(unsigned long long* chosen, int count, int n, F entry) {
  __shared__ unsigned counts[256];
  __shared__ unsigned found[4];
  unsigned long long begin = 0;
  unsigned left = count;
  int shift = 56;
  for (;; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += THREADS) counts[i] = 0;
    if (threadIdx.x == 0) found[3] = 0;
    __syncthreads();
    for (int base = 0; base < n; base += THREADS) {
      const int i = base + (int)threadIdx.x;
      const unsigned long long e = i < n ? entry(i) : 0;
      const bool own = i < n && (shift == 56 || e >> shift >> 8 == begin);
      const unsigned digit = own ? (unsigned)(e >> shift) & 255 : 256;
      const unsigned same = __match_any_sync(~0u, digit);
      if (own && __ffs(same) - 1 == (int)threadIdx.x % 32) atomicAdd(&counts[digit], (unsigned)__popc(same));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      unsigned own = 0;
      for (int i = 0; i < 8; ++i) own += counts[threadIdx.x * 8 + i];
      unsigned until = own;
      for (int step = 1; step < 32; step *= 2) {
        const unsigned before = __shfl_up_sync(~0u, until, step);
        if ((int)threadIdx.x >= step) until += before;
      }
      unsigned before = until - own;
      if (before < left && left <= until) {
        int i = threadIdx.x * 8;
        while (before + counts[i] < left) before += counts[i++];
        found[0] = i; found[1] = before; found[2] = counts[i];
      }
    }
    __syncthreads();
    begin = begin << 8 | found[0];
    left -= found[1];
    if (found[2] == left || shift == 0) break;
    __syncthreads();
  }
  for (int i = threadIdx.x; i < n; i += THREADS) {
    const unsigned long long e = entry(i);
    if (e >> shift <= begin) chosen[atomicAdd(&found[3], 1u)] = e;
  }
  __syncthreads();
}
