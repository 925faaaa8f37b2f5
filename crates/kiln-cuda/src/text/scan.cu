// The combination of a thread's value with those of all threads before it, and of all threads in `total`.
template <int THREADS, class T, class F> T scan_block(T v, T* scratch, T& total, F combine) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(~0u, v, step);
    if (lane >= step) v = combine(before, v);
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = v;
  __syncthreads();
  T before = scratch[0];
  total = scratch[0];
  for (int i = 1; i < THREADS / 32; ++i) {
    if (i < warp) before = combine(before, scratch[i]);
    total = combine(total, scratch[i]);
  }
  return warp > 0 ? combine(before, v) : v;
}
