#include "team.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace radixd {
namespace {

// Keeps a thread on the index-th processor this process may use.  Where all processors are busy, a
// thread that wakes is put beside the one that woke it, and waits some 20 ms for another place.
void pin(std::thread& thread, int index) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  if (index >= count) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    pthread_setaffinity_np(thread.native_handle(), sizeof(own), &own);
    return;
  }
#endif
}

// About 40 microseconds on current processors: longer than a product takes a thread more than the
// other, shorter than a time slice.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_while(std::atomic<uint32_t>& value, uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  value.wait(seen, std::memory_order_acquire);
}

}  // namespace

Team::Team(int threads) : size_(threads) {
  try {
    for (int i = 1; i < size_; ++i) {
      threads_.emplace_back(&Team::serve, this, i);
      pin(threads_.back(), i);
    }
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(int phases, const std::function<void(Member&)>& work) {
  if (phases > num_counters_) {
    counters_ = std::make_unique<Counter[]>(phases);
    num_counters_ = phases;
  }
  for (int i = 0; i < phases; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  work_ = &work;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  Member first(*this, 0);
  work(first);
  arrive();
}

void Team::serve(int index) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(round_, seen);
    if (stopping_) return;
    Member member(*this, index);
    (*work_)(member);
    arrive();
  }
}

void Team::arrive() {
  if (size_ == 1) return;
  const uint32_t seen = barrier_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_.fetch_add(1, std::memory_order_release);
    barrier_.notify_all();
  } else {
    wait_while(barrier_, seen);
  }
}

}  // namespace radixd
