#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace radixd {
namespace {

// Keeps a thread on the index-th processor this process may use.  Where all processors are busy, a
// thread that wakes is put beside the one that woke it, and waits some 20 ms for another place.  Two
// workers on a host need processors of their own (cpuset, taskset), or both take the same.
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

Team::Team(int threads) : size_(threads), doors_(std::make_unique<Door[]>(threads)) {
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
  stopping_.store(true, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(int phases, const std::function<void(Member&)>& work) {
  if (phases > num_counters_) {
    counters_ = std::make_unique<Counter[]>(phases);
    num_counters_ = phases;
  }
  for (int i = 0; i < phases; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  work_ = &work;
  num_members_.store(1, std::memory_order_relaxed);
  barrier_number_ = 0;
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_all();
  Member first(*this, 0, -1);
  work(first);
  arrive(true);
}

void Team::serve(int index) {
  for (uint32_t seen = 0;;) {
    wait_while(begun_, seen);
    // In this order: whoever reads the number that stop() left sees that it stops.
    seen = begun_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    join(index, seen);
  }
}

// Asks to be let in, and takes part unless the step ends first.  By the time this thread looks again,
// later steps may have ended as well.
void Team::join(int index, uint32_t step) {
  Door& door = doors_[index];
  door.wanted.store(step, std::memory_order_release);
  while (door.opened.load(std::memory_order_acquire) != step) {
    if (static_cast<int32_t>(done_.load(std::memory_order_acquire) - step) >= 0) return;
    relax();
  }
  Member member(*this, index, door.at);
  (*work_)(member);
  arrive(true);
}

// By the last to arrive at a barrier, while all others wait there.
void Team::let_in() {
  const uint32_t step = begun_.load(std::memory_order_relaxed);
  for (int i = 1; i < size_; ++i) {
    Door& door = doors_[i];
    if (door.wanted.load(std::memory_order_acquire) != step) continue;
    door.wanted.store(0, std::memory_order_relaxed);
    door.at = barrier_number_;
    num_members_.fetch_add(1, std::memory_order_relaxed);
    door.opened.store(step, std::memory_order_release);
  }
}

void Team::arrive(bool is_last) {
  // Read before arriving: behind that, the next step may have begun.
  const uint32_t seen = barrier_.load(std::memory_order_relaxed);
  const int members = num_members_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < members) {
    wait_while(barrier_, seen);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  if (is_last)
    done_.store(begun_.load(std::memory_order_relaxed), std::memory_order_release);
  else
    let_in();
  ++barrier_number_;
  barrier_.fetch_add(1, std::memory_order_release);
  barrier_.notify_all();
}

}  // namespace radixd
