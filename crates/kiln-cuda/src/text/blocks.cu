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
