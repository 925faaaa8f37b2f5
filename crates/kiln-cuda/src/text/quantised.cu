// Quantised elements as they are, small integers, for `mma` of bytes: the weights are its left operand, 16 rows a warp, and x as fixed
// point numbers its right one. The elements of 32 neighbours of x are multiples of one power of two, their scale, with four digits of
// eight bits: each digit has a column of its own, and so have two scales of the weights. Lane (g, t) = (lane / 4, lane % 4) has elements of
// rows g and g + 8 on the left, and those of column g on the right; of the sums it has two digits: the first ones for even t, the last ones
// for odd t. The sums of integers are exact.
void multiply_bytes(int* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
void multiply_signed(int* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Sixteen neighbours of x, of which a neighbouring lane has the other half of 32, as digits: those of one weight are 16 bytes, the first
// digits first. An element that is not finite makes the scale NaN; it is that of the first two digits.
void put_digits(unsigned char* digits, float* scales, float* sums, int k, const float (&v)[16]) {
  unsigned most = 0;
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 16; ++e) { const unsigned own = __float_as_uint(v[e]) & 0x7fffffffu; most = most < own ? own : most; sum += v[e]; }
  const unsigned other = __shfl_xor_sync(__activemask(), most, 1);
  sum += __shfl_xor_sync(__activemask(), sum, 1);
  most = (most < other ? other : most) >> 23;
  const int exponent = most < 7u ? 7 : (int)most, by = 156 - exponent, half = by / 2;
  const float up = __int_as_float((half + 127) << 23), further = __int_as_float((by - half + 127) << 23);
  unsigned word[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned u[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) u[e] = ((unsigned)__float2int_rn(v[4 * i + e] * up * further) + 0x00808080u) ^ 0x00808080u;
    const unsigned low[2] = {__byte_perm(u[0], u[1], 0x5140), __byte_perm(u[2], u[3], 0x5140)};
    const unsigned high[2] = {__byte_perm(u[0], u[1], 0x7362), __byte_perm(u[2], u[3], 0x7362)};
    word[0][i] = __byte_perm(high[0], high[1], 0x7632);
    word[1][i] = __byte_perm(high[0], high[1], 0x5410);
    word[2][i] = __byte_perm(low[0], low[1], 0x7632);
    word[3][i] = __byte_perm(low[0], low[1], 0x5410);
  }
#pragma unroll
  for (int digit = 0; digit < 4; ++digit) *(uint4*)(digits + 4 * k + 16 * digit) = uint4{word[digit][0], word[digit][1], word[digit][2], word[digit][3]};
  if (k % 32 == 0) {
    const unsigned bits = exponent > 13 ? (unsigned)(exponent - 13) << 23 : 1u << (exponent + 9);
    scales[k / 32] = __uint_as_float(most == 255u ? 0x7fc00000u : bits);
    sums[k / 32] = sum;
  }
}
// What a lane knows of x at an item: the digits of its column, or zeros, in two places; scales and sums of 32 from its own on.
struct Left { const unsigned char* digits[2]; const float *scales, *sums; };
// A lane's places, from the beginning of shared memory, and how far they move with an item; and what it picks from words. They are not
// computed again where they are used.
unsigned known(unsigned v) { asm volatile("" : "+r"(v)); return v; }
struct Lane {
  unsigned digits[2], step[2], scales, sums, pick, own;
  Lane(bool first, bool second, unsigned at, unsigned zeros, unsigned bytes, unsigned group, unsigned sum, unsigned pick, unsigned own)
      : digits{known(first ? at : zeros), known(second ? at : zeros)}, step{known(first ? bytes : 0), known(second ? bytes : 0)},
        scales(known(group * 4)), sums(known(sum * 4)), pick(known(pick)), own(known(own)) {}
};
// The sums of two rows: of the lane's digits in units of the first two, or the last two, and what is subtracted from them.
struct Sum { float main[2], least[2]; };
float two_digits(const int* c) { return (float)(c[0] * 256 + c[1]); }
unsigned word_at(const unsigned char* p) { return *(const unsigned*)p; }
// Four bytes from a multiple of two on, which is one of four or not, as SHIFT says.
template <int SHIFT> unsigned bytes_at(const unsigned char* p) {
  if constexpr (SHIFT == 0) return word_at(p); else return __byte_perm(word_at(p - 2), word_at(p + 2), 0x5432);
}
float half_of(const unsigned char* p) { return from_f16(*(const unsigned short*)p); }
// Bits 0 to 3 as the highest bits of four bytes.
unsigned top_bits(unsigned bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 7; }

// 256 elements: eight scales and minima, each of 32 neighbours; the low and the high halves of 32 bytes are 64 neighbours. High halves
// stay where they are, 16 times as large.
struct Quantised_q4_k {
  static constexpr int elements = 256, bytes = 144;
  static Lane lane(int g, int t, unsigned digits, unsigned zeros) {
    return Lane(g / 4 == t / 2, false, digits + g % 4 * 16 + t / 2 * 256 + t % 2 * 64, zeros, 4 * elements, t / 2 * 2, t, t / 2 ? 0x4342u : 0x4140u, 0x7440u + t);
  }
  static void add(Sum& total, const unsigned char* row, int eight, Left left, const Lane& lane, int t) {
    const unsigned char* x = left.digits[0];
    const uint4 head[2] = {*(const uint4*)row, *(const uint4*)(row + eight)};
    const unsigned pick = lane.pick, own = lane.own;
    float part[2] = {}, least[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 q0 = *(const uint4*)(row + 16 + 64 * j + 16 * t), q1 = *(const uint4*)(row + eight + 16 + 64 * j + 16 * t);
      const float2 scale = *(const float2*)(left.scales + 4 * j);
      const float sum = left.sums[4 * j];
      int c[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned mask = half ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        const uint4 b = *(const uint4*)(x + 512 * j + 128 * half);
        multiply_bytes(c[half], q0.x & mask, q1.x & mask, q0.y & mask, q1.y & mask, b.x, b.y);
        multiply_bytes(c[half], q0.z & mask, q1.z & mask, q0.w & mask, q1.w & mask, b.z, b.w);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 h = head[r];
        const unsigned y = __byte_perm(h.y, 0, pick), z = __byte_perm(h.z, 0x4b000000u, own);
        unsigned s = y & 0x003f003fu, m = z & 0x4b00003fu;
        if (j == 1) {
          s = (__byte_perm(h.w, 0, pick) & 0x000f000fu) | (y >> 2 & 0x00300030u);
          m = (__byte_perm(h.w, 0x4b000000u, own) >> 4 & 15u) | (z >> 2 & 0x30u) | 0x4b000000u;
        }
        // 2^23 + s, and 2^19 + s / 16.
        const float first = __uint_as_float(__byte_perm(s, 0x4b000000u, 0x7410)) - 8388608.0f;
        const float second = __uint_as_float(__byte_perm(s, 0x49000000u, 0x7432)) - 524288.0f;
        part[r] = fmaf(two_digits(c[0] + 2 * r) * first, scale.x, part[r]);
        part[r] = fmaf(two_digits(c[1] + 2 * r) * second, scale.y, part[r]);
        least[r] = fmaf(__uint_as_float(m) - 8388608.0f, sum, least[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total.main[r] = fmaf(from_f16((unsigned short)head[r].x), part[r], total.main[r]);
      total.least[r] = fmaf(from_f16((unsigned short)(head[r].x >> 16)), least[r], total.least[r]);
    }
  }
};
// 256 elements from a multiple of two bytes on, sixteen scales. An element less 32 is a signed byte if its six bits are the highest.
struct Quantised_q6_k {
  static constexpr int elements = 256, bytes = 210;
  static void load(unsigned (&to)[2], const unsigned char* aligned, unsigned shift) {
    const unsigned w[3] = {word_at(aligned), word_at(aligned + 4), word_at(aligned + 8)};
    to[0] = __funnelshift_r(w[0], w[1], shift); to[1] = __funnelshift_r(w[1], w[2], shift);
  }
  static Lane lane(int g, int t, unsigned digits, unsigned zeros) {
    return Lane(g / 4 == t / 2, false, digits + g % 4 * 16 + t / 2 * 64 + t % 2 * 8, zeros, 4 * elements, 0, 0, 0x7440u + t / 2, 0);
  }
  static void add(Sum& total, const unsigned char* row, int eight, Left left, const Lane& lane, int t) {
    const unsigned odd = (unsigned)(unsigned long long)row & 2u, shift = 8 * odd;
    row -= odd;
    const unsigned char* x = left.digits[0];
    float part[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned q[2][3][2];
      int c[4][4] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned char* from = row + eight * r + 8 * t;
        load(q[r][0], from + 64 * half, shift); load(q[r][1], from + 64 * half + 32, shift); load(q[r][2], from + 128 + 32 * half, shift);
      }
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        unsigned v[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const unsigned low = q[r][quarter % 2][i], high = q[r][2][i] << (6 - 2 * quarter);
            v[r][i] = ((quarter < 2 ? low << 2 : low >> 2) & 0x3c3c3c3cu) | ((high & 0xc0c0c0c0u) ^ 0x80808080u);
          }
        const uint2 b = *(const uint2*)(x + 512 * half + 128 * quarter);
        multiply_signed(c[quarter], v[0][0], v[1][0], v[0][1], v[1][1], b.x, b.y);
      }
      const float4 scale = *(const float4*)(left.scales + 4 * half);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        unsigned packed[2];
        load(packed, row + eight * r + 192 + 8 * half, shift);
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
          const unsigned bits = __byte_perm(packed[quarter / 2] ^ 0x80808080u, 0x4b000000u, lane.pick + quarter % 2 * 2);
          const float own = quarter == 0 ? scale.x : quarter == 1 ? scale.y : quarter == 2 ? scale.z : scale.w;
          part[r] = fmaf(two_digits(c[quarter] + 2 * r) * (__uint_as_float(bits) - 8388736.0f), own, part[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) total.main[r] = fmaf(half_of(row + eight * r + 208 + odd) * 0.25f, part[r], total.main[r]);
  }
};
// Blocks of 32 elements with a scale each: two of them have their digits in columns of their own. `F` has the bytes of a block, says
// how a lane's eight elements 4t … 4t + 3 and 16 + 4t … are signed bytes, and how many times as large these are.
template <class F> struct Blocks {
  static constexpr int elements = F::count * 32, bytes = F::count * F::size;
  static Lane lane(int g, int t, unsigned digits, unsigned zeros) {
    return Lane(g < 4, g >= 4, digits + g % 4 * 16 + 4 * t, zeros, 4 * elements, t / 2, t / 2, 0, 0);
  }
  static void add(Sum& total, const unsigned char* row, int eight, Left left, const Lane&, int t) {
#pragma unroll
    for (int pair = 0; pair < F::count / 2; ++pair) {
      int c[4] = {};
      unsigned a[2][2], b[2][2];
      F::template unpack<0>(a[0], row + 2 * pair * F::size, t); F::template unpack<0>(a[1], row + eight + 2 * pair * F::size, t);
      F::template unpack<1>(b[0], row + (2 * pair + 1) * F::size, t); F::template unpack<1>(b[1], row + eight + (2 * pair + 1) * F::size, t);
      const unsigned char* even = left.digits[0] + 256 * pair; const unsigned char* odd = left.digits[1] + 256 * pair + 128;
      multiply_signed(c, a[0][0], a[1][0], a[0][1], a[1][1], word_at(even), word_at(even + 64));
      multiply_signed(c, b[0][0], b[1][0], b[0][1], b[1][1], word_at(odd), word_at(odd + 64));
      const unsigned char* head = row + (2 * pair + t / 2) * F::size;
      const float scale = left.scales[2 * pair], sum = t % 2 ? 0.0f : left.sums[2 * pair];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        total.main[r] = fmaf(two_digits(c + 2 * r) * (half_of(head + eight * r) * F::unit), scale, total.main[r]);
        if constexpr (F::least) total.least[r] = fmaf(-half_of(head + eight * r + 2), sum, total.least[r]);
      }
    }
  }
};
struct Block_q4_0 {
  static constexpr int count = 8, size = 18; static constexpr float unit = 0.0625f; static constexpr bool least = false;
  template <int ODD> static void unpack(unsigned* to, const unsigned char* block, int t) {
    const unsigned w = bytes_at<1 - ODD>(block + 2 + 4 * t);
    to[0] = (w << 4 & 0xf0f0f0f0u) ^ 0x80808080u; to[1] = (w & 0xf0f0f0f0u) ^ 0x80808080u;
  }
};
struct Block_q4_1 {
  static constexpr int count = 8, size = 20; static constexpr float unit = 1.0f; static constexpr bool least = true;
  template <int> static void unpack(unsigned* to, const unsigned char* block, int t) {
    const unsigned w = word_at(block + 4 + 4 * t);
    to[0] = w & 0x0f0f0f0fu; to[1] = w >> 4 & 0x0f0f0f0fu;
  }
};
struct Block_q5_0 {
  static constexpr int count = 8, size = 22; static constexpr float unit = 0.125f; static constexpr bool least = false;
  template <int ODD> static void unpack(unsigned* to, const unsigned char* block, int t) {
    const unsigned high = bytes_at<1 - ODD>(block + 2) >> 4 * t, w = bytes_at<1 - ODD>(block + 6 + 4 * t);
    to[0] = ((w << 3 & 0x78787878u) | top_bits(high)) ^ 0x80808080u; to[1] = ((w >> 1 & 0x78787878u) | top_bits(high >> 16)) ^ 0x80808080u;
  }
};
struct Block_q8_0 {
  static constexpr int count = 4, size = 34; static constexpr float unit = 1.0f; static constexpr bool least = false;
  template <int ODD> static void unpack(unsigned* to, const unsigned char* block, int t) {
    to[0] = bytes_at<1 - ODD>(block + 2 + 4 * t); to[1] = bytes_at<1 - ODD>(block + 18 + 4 * t);
  }
};
typedef Blocks<Block_q4_0> Quantised_q4_0;
typedef Blocks<Block_q4_1> Quantised_q4_1;
typedef Blocks<Block_q5_0> Quantised_q5_0;
typedef Blocks<Block_q8_0> Quantised_q8_0;
