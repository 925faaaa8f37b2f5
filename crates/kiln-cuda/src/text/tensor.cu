// Where a chunk of a row of CHUNKS chunks is: rows that follow one another have their chunks in different banks.
template <int CHUNKS> unsigned chunk_at(int row, int chunk) {
  constexpr int mask = CHUNKS < 8 ? CHUNKS - 1 : 7;
  return (row * CHUNKS + (chunk ^ (row & mask))) * 16;
}
// Copies some bytes of a chunk; the rest of it becomes 0.
void copy_part(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
void copy_chunk(unsigned to, const void* from, bool inside) { copy_part(to, from, inside ? 16 : 0); }
void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }
void load_matrix(unsigned* r, unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
void load_transposed(unsigned* r, unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
void multiply_bf16(float* c, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
void multiply_f16(float* c, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
