// The larger of two, NaN if one is.
float max_or_nan(float x, float y) { float m; asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(x), "f"(y)); return m; }
// 2ˣ with an error of two units in the last place; results below the smallest normal number are 0.
float power_of_two(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
