// team: the threads of one parallel region.
//
// In:    counters that the caller has set to zero
// Out:   tasks, each run once, and barriers
// Owns:  the threads that work for each thread of the host
// Never: the content of a task
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "simd.h"

extern "C" {
int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);  // glibc's
extern void* __dso_handle;
}

namespace {

constexpr int64_t MOST_THREADS = 256;  // pipeline/config.py allows as many
constexpr int SPINS = 500;  // polls at a barrier before sleeping, some 20 microseconds

// A number that threads wait for. Waiting threads sleep after a moment: on a busy machine, a spinning thread occupies the core
// that the thread it waits for needs. Linux is asked directly, so that no library has to be loaded beside this one.
class Signal {
public:
    // Waits until the number is another one, and returns it.
    int32_t changed(int32_t from) {
        for (int i = 0; i < SPINS; i++) {
            if (const int32_t seen = value.load(std::memory_order_acquire); seen != from) return seen;
            relax();
        }
        for (int32_t seen;;) {
            if ((seen = value.load(std::memory_order_acquire)) != from) return seen;
            syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, from, nullptr, nullptr, 0);
        }
    }

    void wake() { syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

    std::atomic<int32_t> value{0};
};

// The threads that work for one thread of the host. They are kept between its calls, and end with it.
class Crew {
public:
    // Runs work(me, size) on each of `size` threads, the calling one among them; returns when all have.
    template <class Work>
    static void run(int64_t size, const Work& work) {
        if (size == 1) return work(0, 1);
        mine().call([](const void* work, int64_t me, int64_t size) { (*static_cast<const Work*>(work))(me, size); }, &work, size);
    }

private:
    using Call = void (*)(const void*, int64_t, int64_t);

    // A thread, from the first turn it takes part in.
    struct Place {
        Crew* crew;
        int64_t me;
        int32_t seen;
    };

    void call(Call with_work, const void* on, int64_t of) {
        this->with_work = with_work, work = on, size = of;
        while (count < of - 1) {
            places[count] = {this, count + 1, turn.value.load()};
            if (pthread_create(&threads[count], nullptr, serve, &places[count])) std::abort();
            count++;
        }
        busy.value.store(static_cast<int32_t>(count), std::memory_order_relaxed);
        start();
        with_work(on, 0, of);
        for (int32_t left = busy.value.load(std::memory_order_acquire); left;) left = busy.changed(left);
    }

    // The crew of this thread. A thread_local with a destructor would need the C++ library.
    static Crew& mine() {
        static thread_local Crew* crew = nullptr;
        if (!crew) {
            crew = new (std::malloc(sizeof(Crew))) Crew;
            __cxa_thread_atexit_impl(end, crew, &__dso_handle);
        }
        return *crew;
    }

    static void end(void* crew) {
        Crew& own = *static_cast<Crew*>(crew);
        own.size = 0;
        own.start();
        for (int64_t i = 0; i < own.count; i++) pthread_join(own.threads[i], nullptr);
        std::free(crew);
    }

    void start() {
        turn.value.fetch_add(1, std::memory_order_acq_rel);
        turn.wake();
    }

    // A thread beyond the size of a call takes part with nothing to do, so that none misses a turn.
    static void* serve(void* place) {
        auto [crew, me, seen] = *static_cast<Place*>(place);
        while (seen = crew->turn.changed(seen), crew->size) {
            if (me < crew->size) crew->with_work(crew->work, me, crew->size);
            if (crew->busy.value.fetch_sub(1, std::memory_order_acq_rel) == 1) crew->busy.wake();
        }
        return nullptr;
    }

    Place places[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    int64_t count = 0;
    Signal turn, busy;
    Call with_work = nullptr;
    const void* work = nullptr;
    int64_t size = 0;
};

// The number of tasks of one phase that are taken from one thread's part, or done; on a cache line of its own.
struct alignas(64) Count : Signal {};

// The threads of one step, from the view of one of them. They share the tasks of a phase and go on when all are done.
//
// A thread begins with its own part and then takes tasks of the others; the barrier waits only for tasks that are running. So
// a thread that loses its core delays one task and not its whole part, or, between two tasks, nothing: it finds the phases
// it has missed empty, and discards what it reads meanwhile.
class Team {
public:
    // counts: size + 1 per phase, all zero before the first thread starts.
    Team(int64_t me, int64_t size, Count* counts) : me(me), size(size), counts(counts) {}

    template <class Task>
    void share(int64_t tasks, Task task) {
        int64_t own = 0;
        for (int64_t i = 0; i < size; i++) {
            const int64_t owner = (me + i) % size, begin = tasks * owner / size, end = tasks * (owner + 1) / size;
            std::atomic<int32_t>& taken = counts[owner].value;
            for (int64_t at; (at = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end; own++) task(at);
        }
        if (size > 1) meet(counts[size], static_cast<int32_t>(own), static_cast<int32_t>(tasks));
        counts += size + 1;
    }

    const int64_t me, size;

private:
    static void meet(Signal& done, int32_t own, int32_t tasks) {
        if (own && done.value.fetch_add(own, std::memory_order_acq_rel) + own == tasks) return done.wake();
        for (int32_t seen = done.value.load(std::memory_order_acquire); seen != tasks;) seen = done.changed(seen);
    }

    Count* counts;
};

}  // namespace
