// A team of threads that compute one step together.
//
// Threads wait for each other some hundred times in a step of a few milliseconds: they spin for a
// while first, as waking a sleeper takes longer than most waits, and then sleep, as on a busy machine
// a spinning thread would take the core from the one it waits for.  Nobody waits for a thread that
// has not begun yet: where other processes hold its processor it may come 20 ms late, and then joins
// at the next barrier, or finds the step done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace radixd {

class Team {
 public:
  // Throws std::system_error where the system gives no more threads.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // A thread's view of the team during a step.  All members run the same code: whoever joins late
  // runs through it without doing anything, up to the barrier at which it joined.
  class Member {
   public:
    // Takes part behind the barrier with this number; -1: from the start.
    Member(Team& team, int index, int joined_at)
        : team_(team), index_(index), joined_at_(joined_at) {}
    int index() const { return index_; }

    // Calls body(begin, end) for pieces of [0, count) until all are taken, by whoever is free.
    // Every member must call it with the same arguments; does not wait for the others.
    template <class Body>
    void share(int count, int piece, const Body& body) {
      std::atomic<int>& next = team_.counter(phase_++);
      if (is_catching_up()) return;
      for (int begin; (begin = next.fetch_add(piece, std::memory_order_relaxed)) < count;)
        body(begin, std::min(begin + piece, count));
    }

    // Waits until every member is here.
    void wait() {
      if (!is_catching_up()) team_.arrive(false);
      ++barrier_;
    }

   private:
    bool is_catching_up() const { return barrier_ <= joined_at_; }

    Team& team_;
    int index_;
    int joined_at_;
    int phase_ = 0;
    int barrier_ = 0;
  };

  // Runs the work on every member that comes, the caller being the first, with at most `phases` calls
  // of share.
  void run(int phases, const std::function<void(Member&)>& work);

 private:
  // On cache lines of their own: neighbours would wait for each other.
  struct alignas(64) Counter {
    std::atomic<int> next{0};
  };
  struct alignas(64) Door {
    std::atomic<uint32_t> wanted{0};  // the step its thread would join
    std::atomic<uint32_t> opened{0};  // the step it may join, behind the barrier `at`
    int at = 0;
  };

  std::atomic<int>& counter(int phase) {
    assert(phase < num_counters_);
    return counters_[phase].next;
  }
  void arrive(bool is_last);
  void let_in();
  void serve(int index);
  void join(int index, uint32_t step);
  void stop();

  int size_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Counter[]> counters_;
  std::unique_ptr<Door[]> doors_;
  int num_counters_ = 0;
  const std::function<void(Member&)>* work_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<int> num_members_{1};  // of the step; changed at barriers only, by the last to arrive
  int barrier_number_ = 0;           // within the step, likewise
  alignas(64) std::atomic<uint32_t> begun_{0};  // steps
  alignas(64) std::atomic<uint32_t> done_{0};   // steps
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_{0};  // barriers passed
};

}  // namespace radixd
