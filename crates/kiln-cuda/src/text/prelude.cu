struct Fault { unsigned raised; unsigned site; long long index; long long size; };

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Wide { T v[N]; };

// Neighbours as they are in memory. They stay whole words until an element is asked for: a load that nobody has asked yet is not
// waited for, and takes no more registers than it has bytes.
template <class T> T of_bits(unsigned long long bits) { return (T)bits; }
template <> float of_bits<float>(unsigned long long bits) { return __uint_as_float((unsigned)bits); }
template <> double of_bits<double>(unsigned long long bits) { return __longlong_as_double((long long)bits); }
template <class T, int N, bool WORDS = sizeof(T) * N % 4 == 0> struct Packed : Wide<T, N> { T at(int e) const { return this->v[e]; } };
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Packed<T, N, true> {
  unsigned w[sizeof(T) * N / 4];
  T at(int e) const {
    if constexpr (sizeof(T) == 8) return of_bits<T>(w[2 * e] | (unsigned long long)w[2 * e + 1] << 32);
    else if constexpr (sizeof(T) == 4) return of_bits<T>(w[e]);
    else return (T)(w[e * (int)sizeof(T) / 4] >> e * (int)sizeof(T) % 4 * 8);
  }
  // A byte as a float without a conversion, which takes four times as long as an addition: 2^23 + 128 + x has x in its last bits.
  float small(int e) const { return __uint_as_float(__byte_perm(w[e / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + e % 4)) - 8388736.0f; }
};

// Lets the next launch begin before this one has ended; and waits for the end of the launch before, where it was allowed likewise.
void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
void wait_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on the pointer is another one for the compiler: nothing that is read through it has been read before.
#define settle(p) asm volatile("" : "+l"(p)::"memory")

float from_f16(unsigned short h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
unsigned short to_f16(float f) { unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
float from_bf16(unsigned short h) { return __uint_as_float((unsigned)h << 16); }
unsigned short to_bf16(float f) { unsigned short h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
// The same as a float again. A conversion of two is an instruction of the common kind, that of one a slow one.
float round_bf16(float f) { unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(f), "f"(0.0f)); return __uint_as_float(r); }

template <int M, int BIAS, bool INF> float from_f8(unsigned char byte) {
  const int magnitude = byte & 0x7f, e = magnitude >> M, m = magnitude & ((1 << M) - 1);
  float v;
  if (INF && e == 0x7f >> M) v = m == 0 ? __int_as_float(0x7f800000) : __int_as_float(0x7fc00000);
  else if (!INF && magnitude == 0x7f) v = __int_as_float(0x7fc00000);
  else if (e == 0) v = m * __int_as_float((1 - BIAS - M + 127) << 23);
  else v = ((1 << M) + m) * __int_as_float((e - BIAS - M + 127) << 23);
  return byte & 0x80 ? -v : v;
}
template <int M, int BIAS, bool INF> unsigned char to_f8(float v) {
  const unsigned bits = __float_as_uint(v);
  const unsigned char sign = bits >> 24 & 0x80, over = INF ? 0x7c : 0x7f;
  const float a = __uint_as_float(bits & 0x7fffffff);
  if (a != a) return sign | 0x7f;
  if (a > (INF ? 1e6f : 1e4f)) return sign | over;
  int e = (int)(bits >> 23 & 0xff) - 127;
  e = e < 1 - BIAS ? 1 - BIAS : e;
  float steps = rintf(a * __int_as_float((M - e + 127) << 23));
  if (steps >= 2 << M) { steps /= 2; e += 1; }
  const int n = (int)steps;
  const int code = n < 1 << M ? n : ((e + BIAS) << M) + n - (1 << M);
  return sign | (code > (INF ? 0x7b : 0x7e) ? over : code);
}
int load_i4(const unsigned char* p, long long i) { return (int)((unsigned)p[i >> 1] << (i & 1 ? 24 : 28)) >> 28; }
void store_i4(unsigned char* p, long long i, int v) {
  const unsigned long long at = (unsigned long long)(p + (i >> 1));
  unsigned* word = (unsigned*)(at & ~3ULL);
  const unsigned shift = (at & 3) * 8 + (i & 1) * 4;
  atomicAnd(word, ~(15u << shift));
  atomicOr(word, ((unsigned)v & 15u) << shift);
}

float cast_f32(float x) { return x; }
float cast_f32(double x) { return (float)x; }
float cast_f32(int x) { return (float)x; }
float cast_f32(long long x) { return (float)x; }
float cast_f32(bool x) { return x ? 1.0f : 0.0f; }
template <class T> double cast_f64(T x) { return (double)x; }
template <class T> bool cast_bool(T x) { return x != 0; }
int cast_i32(float x) { return x != x ? 0 : __float2int_rz(x); }
int cast_i32(double x) { return x != x ? 0 : __double2int_rz(x); }
int cast_i32(int x) { return x; }
int cast_i32(long long x) { return (int)x; }
int cast_i32(bool x) { return x; }
long long cast_i64(float x) { return x != x ? 0 : __float2ll_rz(x); }
long long cast_i64(double x) { return x != x ? 0 : __double2ll_rz(x); }
template <class T> long long cast_i64(T x) { return (long long)x; }
int bits_i32(float x) { return __float_as_int(x); }
long long bits_i64(double x) { return __double_as_longlong(x); }
float bits_f32(int x) { return __int_as_float(x); }
double bits_f64(long long x) { return __longlong_as_double(x); }

int int_neg(int x) { return (int)(0u - (unsigned)x); }
long long int_neg(long long x) { return (long long)(0ull - (unsigned long long)x); }
template <class T> T int_abs(T x) { return x < 0 ? int_neg(x) : x; }
template <class T> T int_sign(T x) { return (T)((x > 0) - (x < 0)); }
template <class T> T int_div(T x, T y) { return y == 0 ? 0 : y == -1 ? int_neg(x) : x / y; }
template <class T> T int_rem(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; }
template <class T> T int_gcd(T x, T y) {
  unsigned long long a = x < 0 ? 0ull - (unsigned long long)x : (unsigned long long)x, b = y < 0 ? 0ull - (unsigned long long)y : (unsigned long long)y;
  while (b) { const unsigned long long rest = a % b; a = b; b = rest; }
  return (T)a;
}
template <class T> T shl(T x, T y) { return y >= 0 && y < (T)(8 * sizeof(T)) ? (T)((unsigned long long)x << y) : 0; }
template <class T> T shr(T x, T y) { return x >> (y >= 0 && y < (T)(8 * sizeof(T)) ? y : (T)(8 * sizeof(T) - 1)); }
template <class T> T float_sign(T x) { return x != x || x == 0 ? x : x > 0 ? (T)1 : (T)-1; }
template <class T> T larger(T x, T y) { return x != x ? x : y != y ? y : x > y ? x : y; }
template <class T> T smaller(T x, T y) { return x != x ? x : y != y ? y : x < y ? x : y; }
template <> float larger<float>(float x, float y) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
template <> float smaller<float>(float x, float y) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
float power(float x, float y) { return y == 2 ? x * x : y == -1 ? 1 / x : powf(x, y); }
double power(double x, double y) { return y == 2 ? x * x : y == -1 ? 1 / x : pow(x, y); }

long long check_index(long long i, long long size, Fault* fault, unsigned site) {
  if (i >= 0 && i < size) return i;
  if (atomicCAS(&fault->raised, 0u, 1u) == 0u) { fault->site = site; fault->index = i; fault->size = size; }
  return 0;
}

int philox(long long seed, long long position, unsigned stream) {
  unsigned c0 = position, c1 = position >> 32, c2 = stream, c3 = 0, k0 = seed, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = (unsigned long long)c0 * 0xD2511F53u, b = (unsigned long long)c2 * 0xCD9E8D57u;
    c0 = (unsigned)(b >> 32) ^ c1 ^ k0; c1 = (unsigned)b;
    c2 = (unsigned)(a >> 32) ^ c3 ^ k1; c3 = (unsigned)a;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return (int)c0;
}
