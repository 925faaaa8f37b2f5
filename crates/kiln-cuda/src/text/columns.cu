// Combines what Y threads have of each of N columns, L neighbours a thread; thread i gets column i.
template <int N, int Y, int L, class T, class F> T down(const T* v, void* scratch, F combine) {
  T* const shared = (T*)scratch;
  T* const own = shared + threadIdx.x * L;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < L; ++e) own[e] = v[e];
  __syncthreads();
  T all = shared[threadIdx.x % N];
#pragma unroll
  for (int i = 1; i < Y; ++i) all = combine(all, shared[i * N + threadIdx.x % N]);
  return all;
}
