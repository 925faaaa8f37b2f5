// A wide load of what is read once: it takes no place in the first cache.
template <int WORDS> struct Words;
template <> struct Words<4> { static void load(const void* p, unsigned* w) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p)); } };
template <> struct Words<2> { static void load(const void* p, unsigned* w) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p)); } };
template <> struct Words<1> { static void load(const void* p, unsigned* w) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w[0]) : "l"(p)); } };
template <class T, int N> Packed<T, N> streamed(const Packed<T, N>* p) {
  constexpr int count = sizeof(T) * N / 4;
  Packed<T, N> value;
  if constexpr (sizeof(T) * N % 4 != 0) value = *p;
  else if constexpr (count > 4) {
#pragma unroll
    for (int i = 0; i < count; i += 4) Words<4>::load((const char*)p + 4 * i, value.w + i);
  } else Words<count>::load(p, value.w);
  return value;
}
// Asks the second cache for bytes that will be read later: a multiple of 16 from a multiple of 16 on.
void fetch_soon(const void* p, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}
