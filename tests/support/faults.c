/* Makes system calls fail, for tests: cc -shared -fPIC -o faults.so faults.c, then LD_PRELOAD.
 *   FAULT_THREAD=N       std::thread, the N-th (from 1) and all later ones of a process: EAGAIN
 *   FAULT_EIO=CALL:TEXT  CALL on files whose path contains TEXT: EIO; one of write, fsync-file and
 *                        fsync-folder
 *   FAULT_STOP=RANK:TEXT  this rank of mpirun stops (SIGSTOP) when it first opens a path that
 *                        contains TEXT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
  static atomic_int started;
  const char* const first = getenv("FAULT_THREAD");
  Dl_info caller = {0};
  if (first != NULL && dladdr(__builtin_return_address(0), &caller) != 0 &&
      strstr(caller.dli_fname, "libstdc++") != NULL && ++started >= atoi(first)) {
    return EAGAIN;
  }
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, work, argument);
}

static int fails(const char* call, int file) {
  const char* const fault = getenv("FAULT_EIO");
  const size_t length = strlen(call);
  if (fault == NULL || strncmp(fault, call, length) != 0 || fault[length] != ':') return 0;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t read = readlink(link, path, sizeof path - 1);
  if (read < 0) return 0;
  path[read] = '\0';
  if (strstr(path, fault + length + 1) == NULL) return 0;
  errno = EIO;
  return 1;
}

ssize_t write(int file, const void* bytes, size_t count) {
  if (fails("write", file)) return -1;
  ssize_t (*real)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  return real(file, bytes, count);
}

int open(const char* path, int flags, ...) {
  const char* const fault = getenv("FAULT_STOP");
  const char* const rank = getenv("OMPI_COMM_WORLD_RANK");
  const size_t length = rank == NULL ? 0 : strlen(rank);
  if (fault != NULL && length > 0 && strncmp(fault, rank, length) == 0 && fault[length] == ':' &&
      strstr(path, fault + length + 1) != NULL) {
    // Once: threads that open the file side by side would stop a process that was continued.
    static atomic_flag is_stopped = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&is_stopped)) raise(SIGSTOP);
  }
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, "open");
  return real(path, flags, mode);
}

int fsync(int file) {
  struct stat status;
  const int is_folder = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
  if (fails(is_folder ? "fsync-folder" : "fsync-file", file)) return -1;
  int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
  return real(file);
}
