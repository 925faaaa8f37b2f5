// All threads of the blocks of a cluster arrive, and later wait for all others; what they wrote before is visible afterwards.
void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores a float in the shared memory of another block of the cluster, where this block's place is `p`.
void to_rank(float* p, int rank, float value) {
  unsigned own = (unsigned)__cvta_generic_to_shared(p), theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(theirs), "f"(value) : "memory");
}
// A float in the shared memory of another block of the cluster, where this block's is at `p`.
float from_rank(const float* p, int rank) {
  unsigned own = (unsigned)__cvta_generic_to_shared(p), theirs;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs));
  return value;
}
// Four floats likewise, at a multiple of 16 bytes.
Wide<float, 4> four_from_rank(const float* p, int rank) {
  unsigned own = (unsigned)__cvta_generic_to_shared(p), theirs;
  Wide<float, 4> four;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
      : "=f"(four.v[0]), "=f"(four.v[1]), "=f"(four.v[2]), "=f"(four.v[3]) : "r"(theirs));
  return four;
}
