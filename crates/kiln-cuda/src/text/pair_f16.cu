// Two floats as short ones in a word, the first in its low half.
unsigned pair(float x, float y) { unsigned w; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x)); return w; }
float first_of(unsigned w) { return from_f16((unsigned short)w); }
float second_of(unsigned w) { return from_f16((unsigned short)(w >> 16)); }
