// Two floats as short ones in a word, the first in its low half.
unsigned pair(float x, float y) { unsigned w; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x)); return w; }
float first_of(unsigned w) { return __uint_as_float(w << 16); }
float second_of(unsigned w) { return __uint_as_float(w & 0xffff0000u); }
