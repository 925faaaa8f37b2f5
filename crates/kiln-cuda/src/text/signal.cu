// Signals between the blocks of a cluster: a block says how many bytes it expects for a turn, others send them, and it waits. Within a
// block, threads arrive instead: a launch without clusters has no asynchronous stores. A signal is reused after its turn has been waited for.
unsigned shared_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
unsigned at_rank(const void* p, int rank) {
  unsigned theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(shared_at(p)), "r"(rank));
  return theirs;
}
int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
void signal_begin(unsigned long long* signal, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(signal)), "r"(arrivals) : "memory");
}
void signal_arrive(unsigned long long* signal) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(signal)) : "memory");
}
// The whole cluster may use what has begun after its next barrier.
void signals_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
void signal_expect(unsigned long long* signal, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(signal)), "r"(bytes) : "memory");
}
void signal_wait(unsigned long long* signal, unsigned turn) {
  asm volatile("{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(shared_at(signal)), "r"(turn) : "memory");
}
// Two floats to another block of the cluster, where this block's place is `p`, and their bytes to its signal.
void send(float* p, float x, float y, unsigned long long* signal, int rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
               ::"r"(at_rank(p, rank)), "f"(x), "f"(y), "r"(at_rank(signal, rank)) : "memory");
}
// Bytes from memory to this block, a multiple of 16 between multiples of 16, which its signal expects.
void copy_bytes(void* to, const void* from, unsigned bytes, unsigned long long* signal) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_at(to)), "l"(from), "r"(bytes), "r"(shared_at(signal)) : "memory");
}
