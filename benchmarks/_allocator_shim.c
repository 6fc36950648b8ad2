/*
 * An independent answer to "how many bytes of tensors live, and what was the most?"
 *
 * A library to be put in front of libc with LD_PRELOAD (benchmarks/tracker.py builds it and does so). It counts the blocks
 * that are asked for with an alignment, through posix_memalign, aligned_alloc or memalign: PyTorch takes the memory of CPU
 * tensors from posix_memalign, and hardly anything else in the process asks for one. Bytes count as asked for. It knows
 * nothing of PyTorch, so it can contradict the tracker.
 *
 * Live blocks stand in a table by address (open addressing, linear probing). A freed block leaves a tombstone, over which
 * later searches walk; the table is built anew when live blocks and tombstones fill half of it, so that it serves a run of
 * any length. Its own memory comes from mmap, because malloc may be what called.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct {
    uintptr_t address; /* EMPTY, TOMBSTONE or the address of a live block */
    size_t size;
} Slot;

enum { EMPTY = 0, TOMBSTONE = 1, FIRST_CAPACITY = 1 << 16 };

/* Blocks counted here are aligned to this at least; other addresses are not worth a search when they are freed. */
static const size_t SMALLEST_ALIGNMENT = 16;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Slot *slots;
static size_t capacity; /* a power of two */
static size_t used;     /* live blocks and tombstones */
static size_t live;     /* live blocks */
static int64_t live_bytes, peak_bytes;

static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static void *(*real_memalign)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);

/* dlsym may itself allocate; glibc serves that from calloc and malloc, which are not replaced here. */
static void *libc_function(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) abort();
    return function;
}

__attribute__((constructor)) static void find_libc_functions(void) {
    if (real_free != NULL) return;
    real_posix_memalign = libc_function("posix_memalign");
    real_aligned_alloc = libc_function("aligned_alloc");
    real_memalign = libc_function("memalign");
    real_realloc = libc_function("realloc");
    real_free = libc_function("free");
}

static size_t home_of(uintptr_t address) {
    uint64_t mixed = (uint64_t)(address >> 4) * UINT64_C(0x9E3779B97F4A7C15); /* Fibonacci hashing */
    return (size_t)(mixed >> 32) & (capacity - 1);
}

static void put(uintptr_t address, size_t size) {
    size_t i = home_of(address);
    while (slots[i].address != EMPTY) i = (i + 1) & (capacity - 1);
    slots[i] = (Slot){address, size};
    used++;
}

/* Moves the live blocks to a table in which they fill at most a quarter; tombstones stay behind. */
static void rebuild(void) {
    Slot *old = slots;
    size_t old_capacity = capacity;
    size_t wanted = FIRST_CAPACITY;
    while (wanted < 4 * (live + 1)) wanted *= 2;

    Slot *fresh = mmap(NULL, wanted * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) abort();
    slots = fresh; /* zeroed by the kernel: all slots are EMPTY */
    capacity = wanted;
    used = 0;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].address > TOMBSTONE) put(old[i].address, old[i].size);
    if (old != NULL) munmap(old, old_capacity * sizeof(Slot));
}

static void count_block(void *block, size_t size) {
    if (block == NULL) return;
    pthread_mutex_lock(&lock);
    if (2 * (used + 1) > capacity) rebuild();
    put((uintptr_t)block, size);
    live++;
    live_bytes += (int64_t)size;
    if (live_bytes > peak_bytes) peak_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
}

/* Does nothing for a block that was never counted, as most are that come from malloc. */
static void discount_block(void *block) {
    uintptr_t address = (uintptr_t)block;
    if (block == NULL || address % SMALLEST_ALIGNMENT != 0) return;
    pthread_mutex_lock(&lock);
    if (capacity > 0) {
        size_t i = home_of(address);
        while (slots[i].address != EMPTY && slots[i].address != address) i = (i + 1) & (capacity - 1);
        if (slots[i].address == address) {
            live_bytes -= (int64_t)slots[i].size;
            live--;
            slots[i].address = TOMBSTONE;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* -- what takes the place of libc's functions ---------------------------------------------------------------------- */

int posix_memalign(void **block, size_t alignment, size_t size) {
    find_libc_functions();
    int error = real_posix_memalign(block, alignment, size);
    if (error == 0) count_block(*block, size);
    return error;
}

void *aligned_alloc(size_t alignment, size_t size) {
    find_libc_functions();
    void *block = real_aligned_alloc(alignment, size);
    count_block(block, size);
    return block;
}

void *memalign(size_t alignment, size_t size) {
    find_libc_functions();
    void *block = real_memalign(alignment, size);
    count_block(block, size);
    return block;
}

void *realloc(void *block, size_t size) {
    find_libc_functions();
    discount_block(block); /* nobody reallocates the memory of a tensor; if it happens, the block is malloc's from now on */
    return real_realloc(block, size);
}

/* The block is discounted first: once libc has it back, another thread may be given the same address and count it. */
void free(void *block) {
    int saved_errno = errno; /* free leaves errno alone */
    find_libc_functions();
    discount_block(block);
    real_free(block);
    errno = saved_errno;
}

/* -- what tracker.py reads ------------------------------------------------------------------------------------------ */

int64_t shim_live_bytes(void) { return live_bytes; }

int64_t shim_peak_bytes(void) { return peak_bytes; }

void shim_reset_peak(void) {
    pthread_mutex_lock(&lock);
    peak_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
}
