// What copies and stores have written is what tensor cores read, which go another way to shared memory.
void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A matrix in shared memory: rows of 128 bytes, chunks of 16 bytes permuted by the row's number in groups of 8 rows. Where rows are
// across the sum, blocks of 64 columns are as far apart as a tile of them has bytes.
unsigned long long matrix_at(unsigned at) {
  return (at & 0x3ffffu) >> 4 | 8192ull >> 4 << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}
void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
