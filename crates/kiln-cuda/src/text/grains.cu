// Quantised elements as short floats, which hold them exactly, for `mma`: the weights are its left operand, 16 rows a warp.
// Lane (g, t) = (lane / 4, lane % 4) has some elements of rows g and g + 8, and the right operand has the same elements of x, but
// in a column of its own for each scale and 0 in the others: so that one accumulator holds the sums of several scales apart. Lane t
// has those of columns 2t and 2t + 1, and the scales of these.
unsigned less(unsigned pair, unsigned by) { unsigned r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(0x3f803f80u), "r"(by)); return r; }
float byte_of(unsigned w, int at) { return __uint_as_float((w >> 8 * at & 255u) | 0x4b000000u) - 8388608.0f; }
uint4 words(const void* p) { unsigned w[4]; Words<4>::load(p, w); uint4 v; v.x = w[0]; v.y = w[1]; v.z = w[2]; v.w = w[3]; return v; }
// Sixteen elements of x in whole words, or nothing.
template <int N> void column(unsigned (&b)[N], const unsigned short* x, bool on) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const uint4 v = *(const uint4*)(x + 2 * i);
    b[i] = on ? v.x : 0; b[i + 1] = on ? v.y : 0; b[i + 2] = on ? v.z : 0; b[i + 3] = on ? v.w : 0;
  }
}
// 256 elements: eight scales and minima, each of 32 neighbours; the low and the high halves of 32 bytes are 64 neighbours.
struct Grains_q4_k {
  static constexpr int elements = 256;
  struct Raw { uint4 head, q[2]; };
  static void load(Raw& r, const unsigned char* row, int item, int t) {
    const unsigned char* b = row + item * 144;
    r.head = words(b); r.q[0] = words(b + 16 + 16 * t); r.q[1] = words(b + 80 + 16 * t);
  }
  template <int TERMS> static void add(float (&total)[2], const Raw (&raw)[2], const unsigned short* x, int plane, const float* sums, int item, int g, int t) {
    float part[2] = {}, least[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float c[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned short* from = x + item * 256 + (4 * j + t / 2 * 2 + half) * 32 + t % 2 * 16;
        unsigned b[TERMS][8];
#pragma unroll
        for (int term = 0; term < TERMS; ++term) column(b[term], from + term * plane, g == half * 2 + t / 2 * 4);
        const unsigned low[4] = {raw[0].q[j].x, raw[0].q[j].y, raw[0].q[j].z, raw[0].q[j].w};
        const unsigned high[4] = {raw[1].q[j].x, raw[1].q[j].y, raw[1].q[j].z, raw[1].q[j].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned a[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) a[k] = less(((k % 2 ? high : low)[i] >> (4 * half + k / 2 * 8) & 0x000f000fu) | 0x43004300u, 0xc300c300u);
#pragma unroll
          for (int term = 0; term < TERMS; ++term) multiply_bf16(c, a, b[term] + 2 * i);
        }
      }
      const float sum = sums[item * 8 + 4 * j + t];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 h = raw[r].head;
        const unsigned s = j == 0 ? h.y & 0x3f3f3f3fu : (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
        const unsigned m = j == 0 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
        part[r] = fmaf(byte_of(s, t), c[2 * r], part[r]);
        least[r] = fmaf(byte_of(m, t), sum, least[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned h = raw[r].head.x;
      total[r] += from_f16((unsigned short)h) * part[r] - from_f16((unsigned short)(h >> 16)) * least[r];
    }
  }
};
// Half a block of 256 elements, which begins at any multiple of two bytes: 128 elements, four times 32 with two scales each.
struct Grains_q6_k {
  static constexpr int elements = 128;
  struct Raw { unsigned q[3][3]; unsigned short scales, d; unsigned shift; };
  static void load(Raw& r, const unsigned char* row, int item, int t) {
    const unsigned char* b = row + item / 2 * 210;
    const int half = item % 2, at[3] = {64 * half + 8 * t, 64 * half + 32 + 8 * t, 128 + 32 * half + 8 * t};
    r.shift = ((unsigned)(unsigned long long)b & 3u) * 8;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const unsigned* from = (const unsigned*)((unsigned long long)(b + at[i]) & ~3ULL);
#pragma unroll
      for (int w = 0; w < 3; ++w) r.q[i][w] = __ldg(from + w);
    }
    r.scales = __ldg((const unsigned short*)(b + 192 + 8 * half + 2 * t));
    r.d = __ldg((const unsigned short*)(b + 208));
  }
  template <int TERMS> static void add(float (&total)[2], const Raw (&raw)[2], const unsigned short* x, int plane, const float*, int item, int g, int t) {
    float c[4] = {};
    unsigned word[2][3][2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int w = 0; w < 2; ++w) word[r][i][w] = __funnelshift_r(raw[r].q[i][w], raw[r].q[i][w + 1], raw[r].shift);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      unsigned b[TERMS][4];
#pragma unroll
      for (int term = 0; term < TERMS; ++term) column(b[term], x + term * plane + item * 128 + quarter * 32 + 8 * t, g == 2 * quarter + t / 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned v[2], a[4];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          v[r] = (word[r][quarter % 2][i] >> quarter / 2 * 4 & 0x0f0f0f0fu) | (word[r][2][i] >> 2 * quarter & 0x03030303u) << 4;
#pragma unroll
        for (int k = 0; k < 4; ++k) a[k] = less((v[k % 2] >> k / 2 * 8 & 0x00ff00ffu) | 0x43004300u, 0xc320c320u);
#pragma unroll
        for (int term = 0; term < TERMS; ++term) multiply_bf16(c, a, b[term] + 2 * i);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = (float)(signed char)(raw[r].scales & 255), second = (float)(signed char)(raw[r].scales >> 8);
      total[r] += from_f16(raw[r].d) * fmaf(first, c[2 * r], second * c[2 * r + 1]);
    }
  }
};
