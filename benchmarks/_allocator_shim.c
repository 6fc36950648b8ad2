// Counts the blocks of posix_memalign, which is what PyTorch allocates CPU tensors with: live and peak bytes, and how many.
// Put in front of libc with LD_PRELOAD by tracker.py; it knows nothing of PyTorch, so it is an independent answer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <stdint.h>
#include <stdatomic.h>
#include <pthread.h>
#define N (1u<<20)
static void *K[N]; static size_t V[N];
static pthread_mutex_t mu=PTHREAD_MUTEX_INITIALIZER;
static int64_t cur_,peak_; static int64_t nalloc_;
static int (*rp)(void**,size_t,size_t); static void (*rf)(void*);
static __thread int in;
static uint32_t h(void*p){uint64_t x=(uint64_t)p>>4; x*=0x9E3779B97F4A7C15ull; return (x>>44)&(N-1);}
static void init(void){ if(!rp){rp=dlsym(RTLD_NEXT,"posix_memalign");} if(!rf) rf=dlsym(RTLD_NEXT,"free"); }
#define TOMB ((void*)1)
int posix_memalign(void**p,size_t a,size_t n){ init(); int r=rp(p,a,n); if(r==0&&*p){ pthread_mutex_lock(&mu); uint32_t i=h(*p); while(K[i]&&K[i]!=TOMB) i=(i+1)&(N-1); K[i]=*p; V[i]=n; cur_+=n; nalloc_++; if(cur_>peak_)peak_=cur_; pthread_mutex_unlock(&mu);} return r;}
static atomic_int any;
void free(void*p){ if(!rf){ init(); if(!rf) return; } if(p && ((uintptr_t)p&63)==0){ pthread_mutex_lock(&mu); uint32_t i=h(p); while(K[i]){ if(K[i]==p){ cur_-=V[i]; K[i]=TOMB; break;} i=(i+1)&(N-1);} pthread_mutex_unlock(&mu);} rf(p);}
int64_t shim_cur(void){return cur_;} int64_t shim_peak(void){return peak_;} int64_t shim_n(void){return nalloc_;}
void shim_reset(void){pthread_mutex_lock(&mu); peak_=cur_; nalloc_=0; pthread_mutex_unlock(&mu);}
