template <class T> struct Extreme { T value; long long at; };

template <class T> T exchange(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
template <class T> Extreme<T> exchange(Extreme<T> v, int mask) { return {exchange(v.value, mask), exchange(v.at, mask)}; }

// Combines the values of the Y threads that share a row; each of them gets the result. A block has X rows; ROW says whether
// neighbouring threads share a row.
template <int X, int Y, bool ROW, class T, class F> T across(T v, void* scratch, F combine) {
  if (Y == 1) return v;
  T* shared = (T*)scratch;
  if (ROW) {
#pragma unroll
    for (int mask = (Y < 32 ? Y : 32) / 2; mask > 0; mask /= 2) v = combine(v, exchange(v, mask));
    if (Y <= 32) return v;
    const int row = threadIdx.x / Y * (Y / 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[row];
    for (int i = 1; i < Y / 32; ++i) v = combine(v, shared[row + i]);
    return v;
  }
  __syncthreads();
  shared[threadIdx.x] = v;
  __syncthreads();
  v = shared[threadIdx.x % X];
  for (int i = 1; i < Y; ++i) v = combine(v, shared[i * X + threadIdx.x % X]);
  return v;
}
template <class T> Extreme<T> arg_max(Extreme<T> a, Extreme<T> b) {
  const bool an = a.value != a.value, bn = b.value != b.value;
  const bool first = an || bn ? (an && bn ? a.at <= b.at : an) : a.value == b.value ? a.at <= b.at : a.value > b.value;
  return first ? a : b;
}
template <class T> Extreme<T> arg_min(Extreme<T> a, Extreme<T> b) {
  const bool an = a.value != a.value, bn = b.value != b.value;
  const bool first = an || bn ? (an && bn ? a.at <= b.at : an) : a.value == b.value ? a.at <= b.at : a.value < b.value;
  return first ? a : b;
}
// The first position of nothing is 0.
long long first_if_none(long long at) { return at < 0 ? 0 : at; }
