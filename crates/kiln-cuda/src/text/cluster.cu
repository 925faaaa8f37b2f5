// All threads of the blocks of a cluster meet here; what they wrote to shared memory is visible afterwards.
void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A float in the shared memory of another block of the cluster, where this block's is at `p`.
float from_rank(const float* p, int rank) {
  unsigned own = (unsigned)__cvta_generic_to_shared(p), theirs;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs));
  return value;
}
