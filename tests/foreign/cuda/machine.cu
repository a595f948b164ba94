// Special registers: what they hold differs from card to card, what is true of them does not.
extern "C" __global__ void machine(unsigned* y) {
    unsigned sm, sms, warp, warps, mask, bytes;
    unsigned long long grid, time, later;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
    asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(mask));
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    long long start = clock64();
    __nanosleep(2000);
    unsigned ticks = clock64() - start;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(later));
    y[blockIdx.x * blockDim.x + threadIdx.x] = (sm < sms) + 2 * (warp < warps) + 4 * (ticks > 0) + 8 * (later >= time) + 16 * (bytes == 0) + 32 * __popc(mask);
}
