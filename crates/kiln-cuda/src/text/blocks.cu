float half_at(const unsigned char* b, int at) { return from_f16((unsigned short)(b[at] | b[at + 1] << 8)); }
float q4_0(const unsigned char* b, int i) { return ((float)(b[2 + i % 16] >> i / 16 * 4 & 15) - 8.0f) * half_at(b, 0); }
float q4_1(const unsigned char* b, int i) { return (float)(b[4 + i % 16] >> i / 16 * 4 & 15) * half_at(b, 0) + half_at(b, 2); }
float q5_0(const unsigned char* b, int i) {
  const int top = b[2 + i / 8] >> i % 8 & 1, low = b[6 + i % 16] >> i / 16 * 4 & 15;
  return ((float)(low | top << 4) - 16.0f) * half_at(b, 0);
}
float q8_0(const unsigned char* b, int i) { return (float)(signed char)b[2 + i] * half_at(b, 0); }
float q4_k(const unsigned char* b, int i) {
  const int part = i / 32, group = i / 64;
  const unsigned char* p = b + 4;
  const int s = part < 4 ? p[part] & 63 : (p[part + 4] & 15) | p[part - 4] >> 6 << 4;
  const int m = part < 4 ? p[part + 4] & 63 : p[part + 4] >> 4 | p[part] >> 6 << 4;
  const int q = b[16 + group * 32 + i % 32] >> part % 2 * 4 & 15;
  return half_at(b, 0) * (float)s * (float)q - half_at(b, 2) * (float)m;
}
float q6_k(const unsigned char* b, int i) {
  const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
  const int low = b[64 * half + 32 * (quarter % 2) + at] >> quarter / 2 * 4 & 15;
  const int high = b[128 + 32 * half + at] >> 2 * quarter & 3;
  const float scale = half_at(b, 208) * (float)(signed char)b[192 + 8 * half + 2 * quarter + at / 16];
  return scale * (float)((low | high << 4) - 32);
}

// Sixteen elements of a block from 16 * part on.
unsigned pair_at(const unsigned char* b, int at) { return *(const unsigned short*)(b + at); }
void nibbles(const unsigned char* b, int shift, int* q) {
#pragma unroll
  for (int i = 0; i < 8; ++i) { const unsigned v = pair_at(b, 2 * i) >> shift; q[2 * i] = v & 15; q[2 * i + 1] = v >> 8 & 15; }
}
void run_q4_0(const unsigned char* b, int part, float* w) {
  int q[16]; nibbles(b + 2, part * 4, q);
  const float d = half_at(b, 0);
#pragma unroll
  for (int i = 0; i < 16; ++i) w[i] = ((float)q[i] - 8.0f) * d;
}
void run_q4_1(const unsigned char* b, int part, float* w) {
  int q[16]; nibbles(b + 4, part * 4, q);
  const float d = half_at(b, 0), m = half_at(b, 2);
#pragma unroll
  for (int i = 0; i < 16; ++i) w[i] = (float)q[i] * d + m;
}
void run_q5_0(const unsigned char* b, int part, float* w) {
  int q[16]; nibbles(b + 6, part * 4, q);
  const unsigned top = pair_at(b, 2 + 2 * part);
  const float d = half_at(b, 0);
#pragma unroll
  for (int i = 0; i < 16; ++i) w[i] = ((float)(q[i] | (int)(top >> i & 1) << 4) - 16.0f) * d;
}
void run_q8_0(const unsigned char* b, int part, float* w) {
  const float d = half_at(b, 0);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const unsigned v = pair_at(b, 2 + 16 * part + 2 * i);
    w[2 * i] = (float)(signed char)(v & 255) * d;
    w[2 * i + 1] = (float)(signed char)(v >> 8) * d;
  }
}
// Its bytes begin at a multiple of 16.
void run_q4_k(const unsigned char* b, int part, float* w) {
  const uint4 head = *(const uint4*)b, q = *(const uint4*)(b + 16 + part / 4 * 32 + part % 2 * 16);
  const int sub = part / 2, at = sub % 4 * 8;
  const unsigned low = head.y >> at, middle = head.z >> at, high = head.w >> at;
  const int s = sub < 4 ? low & 63 : (high & 15) | (low >> 6 & 3) << 4;
  const int m = sub < 4 ? middle & 63 : (high >> 4 & 15) | (middle >> 6 & 3) << 4;
  const float d = from_f16((unsigned short)head.x) * (float)s, least = from_f16((unsigned short)(head.x >> 16)) * (float)m;
  const unsigned words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 16; ++i) w[i] = d * (float)(words[i / 4] >> (i % 4 * 8 + sub % 2 * 4) & 15) - least;
}
void run_q6_k(const unsigned char* b, int part, float* w) {
  const int half = part / 8, quarter = part % 8 / 2, at = part % 2 * 16;
  int low[16]; nibbles(b + 64 * half + 32 * (quarter % 2) + at, quarter / 2 * 4, low);
  const float d = half_at(b, 208) * (float)(signed char)b[192 + 8 * half + 2 * quarter + part % 2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const unsigned v = pair_at(b, 128 + 32 * half + at + 2 * i) >> 2 * quarter;
    w[2 * i] = d * (float)((low[2 * i] | (int)(v & 3) << 4) - 32);
    w[2 * i + 1] = d * (float)((low[2 * i + 1] | (int)(v >> 8 & 3) << 4) - 32);
  }
}
