// team: the threads of one parallel region.
//
// In:    counters that the caller has set to zero
// Out:   tasks, each run once, and barriers
// Owns:  nothing
// Never: the content of a task
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>

#include "simd.h"

namespace {

constexpr int SPINS = 500;  // polls at a barrier before sleeping, some 20 microseconds

// The number of tasks of one phase that are taken from one thread's part, or done; on a cache line of its own.
struct alignas(64) Count {
    std::atomic<int64_t> value;
};

// The threads of one step, from the view of one of them. They share the tasks of a phase and go on when all are done.
//
// A thread begins with its own part and then takes tasks of the others; the barrier waits only for tasks that are running. So
// a thread that loses its core delays one task and not its whole part, or, between two tasks, nothing: it finds the phases
// it has missed empty, and discards what it reads meanwhile. Waiting threads sleep after a moment: on a busy machine, a
// spinning thread occupies the core that the thread it waits for needs. OpenMP's own barrier spins for milliseconds.
class Team {
public:
    // counts: size + 1 per phase, all zero before the first thread starts.
    explicit Team(Count* counts) : me(omp_get_thread_num()), size(omp_get_num_threads()), counts(counts) {}

    template <class Task>
    void share(int64_t tasks, Task task) {
        int64_t own = 0;
        for (int64_t i = 0; i < size; i++) {
            const int64_t owner = (me + i) % size, begin = tasks * owner / size, end = tasks * (owner + 1) / size;
            std::atomic<int64_t>& taken = counts[owner].value;
            for (int64_t at; (at = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end; own++) task(at);
        }
        if (size > 1) meet(counts[size].value, own, tasks);
        counts += size + 1;
    }

    const int64_t me, size;

private:
    static void meet(std::atomic<int64_t>& done, int64_t own, int64_t tasks) {
        if (own && done.fetch_add(own, std::memory_order_acq_rel) + own == tasks) return done.notify_all();
        for (int i = 0; i < SPINS; i++) {
            if (done.load(std::memory_order_acquire) == tasks) return;
            relax();
        }
        for (int64_t seen; (seen = done.load(std::memory_order_acquire)) != tasks;) done.wait(seen, std::memory_order_acquire);
    }

    Count* counts;
};

}  // namespace
