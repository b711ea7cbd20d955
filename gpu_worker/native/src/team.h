// A team of threads that compute one step together.
//
// Threads wait for each other some hundred times in a step of a few milliseconds: they spin for a
// while first, as waking a sleeper takes longer than most waits, and then sleep, as on a busy machine
// a spinning thread would take the core from the one it waits for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace radixd {

class Team {
 public:
  // Throws std::system_error where the system gives no more threads.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // A thread's view of the team during a step.
  class Member {
   public:
    Member(Team& team, int index) : team_(team), index_(index) {}
    int index() const { return index_; }

    // Calls body(begin, end) for pieces of [0, count) until all are taken, by whoever is free.
    // Every member must call it with the same arguments; does not wait for the others.
    template <class Body>
    void share(int count, int piece, const Body& body) {
      std::atomic<int>& next = team_.counter(phase_++);
      for (int begin; (begin = next.fetch_add(piece, std::memory_order_relaxed)) < count;)
        body(begin, std::min(begin + piece, count));
    }

    // Waits until every member is here.
    void wait() { team_.arrive(); }

   private:
    Team& team_;
    int index_;
    int phase_ = 0;
  };

  // Runs the work on every member, the caller being the first, with at most `phases` calls of share.
  void run(int phases, const std::function<void(Member&)>& work);

 private:
  // On a cache line of its own: neighbours would wait for each other.
  struct alignas(64) Counter {
    std::atomic<int> next{0};
  };

  std::atomic<int>& counter(int phase) { return counters_[phase].next; }
  void arrive();
  void serve(int index);
  void stop();

  int size_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Counter[]> counters_;
  int num_counters_ = 0;
  const std::function<void(Member&)>* work_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> round_{0};  // steps begun
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_{0};  // barriers passed
};

}  // namespace radixd
