// Adds each of N values up over the lanes whose numbers differ in the bits from MASK down to LOW. Lanes share the work: a bit
// halves the values of a lane as long as their number is even; the lanes with the bit keep the second half.
template <int N, int MASK, int LOW> void fold(float* v) {
  if constexpr (MASK >= LOW) {
    if constexpr (N % 2 == 0) {
      const bool second = threadIdx.x & MASK;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float kept = second ? v[i + N / 2] : v[i], given = second ? v[i] : v[i + N / 2];
        v[i] = kept + __shfl_xor_sync(~0u, given, MASK);
      }
      fold<N / 2, MASK / 2, LOW>(v);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += __shfl_xor_sync(~0u, v[i], MASK);
      fold<N, MASK / 2, LOW>(v);
    }
  }
}
