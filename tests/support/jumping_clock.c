/* Jumping clock: the wall clock of a process is some seconds wrong, and how many a file says; every other clock stays.
 *
 * Loaded with LD_PRELOAD. $CLOCK_OFFSET_FILE holds eight bytes, the seconds, mapped into memory: a jump is one write.
 * Whoever waits until a moment of the wall clock waits until that moment of the wrong one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define A_DATE 1000000000L /* seconds: later ones are dates, smaller ones a monotonic clock's */

static volatile int64_t none = 0;
static volatile int64_t *offset = &none;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    if (file >= 0) close(file);
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static const struct timespec *right(const struct timespec *until, struct timespec *own) {
    if (until == NULL || until->tv_sec < A_DATE) return until;
    *own = *until;
    own->tv_sec -= *offset;
    return own;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && is_wall(clock)) now->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL) *now = found.tv_sec;
    return found.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = NULL;
    struct timespec own;
    if (real == NULL) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(condition, mutex, right(until, &own));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *) = NULL;
    struct timespec own;
    if (real == NULL) real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, right(until, &own));
}

long syscall(long number, ...) {
    static long (*real)(long, ...) = NULL;
    struct timespec own;
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    if (real == NULL) real = dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME)) a[3] = (long)right((const struct timespec *)a[3], &own);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
