// calls FOLDER: the calls with paths, under the preload library with IWARP_PRELOAD_FILES=FOLDER. Prints what is wrong.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define DEVICES "/sys/class/infiniband"
#define DEVICE DEVICES "/iwarp0"
#define TYPE DEVICE "/node_type"
#define NODE "/dev/infiniband/uverbs0"

// Functions that headers of today no longer declare, or only for fortified programs.
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);
#ifdef __aarch64__
#define VERSION 0
#else
#define VERSION 1
#endif

static int failures;
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno);                                           \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

// Allocations of the whole process: these functions come before those of the C library.
void *__libc_malloc(size_t);
static int allocations;
void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}

static int is_type(int fd) { // the file with the type of the node
    char text[8] = "";
    int got = read(fd, text, 7);
    close(fd);
    return got == 6 && !strcmp(text, "1: CA\n");
}

static int is_stream(FILE *stream) {
    char text[8] = "";
    if (!stream) return 0;
    char *line = fgets(text, sizeof text, stream);
    fclose(stream);
    return line && !strcmp(line, "1: CA\n");
}

static void opens(void) {
    CHECK(is_type(open(TYPE, O_RDONLY)));
    CHECK(is_type(open("/sys//class/./infiniband/iwarp0/node_type", O_RDONLY)));
    CHECK(is_type(open64(TYPE, O_RDONLY)));
    CHECK(is_type(__open_2(TYPE, O_RDONLY)));
    CHECK(is_type(__open64_2(TYPE, O_RDONLY)));
    CHECK(is_type(openat(AT_FDCWD, TYPE, O_RDONLY)));
    CHECK(is_type(openat64(AT_FDCWD, TYPE, O_RDONLY)));
    CHECK(is_type(__openat_2(-1, TYPE, O_RDONLY)));
    CHECK(is_type(__openat64_2(-1, TYPE, O_RDONLY)));
    CHECK(is_stream(fopen(TYPE, "r")));
    CHECK(is_stream(fopen64(TYPE, "r")));
    CHECK(is_stream(freopen(TYPE, "r", fopen("/dev/null", "r"))));
    CHECK(is_stream(freopen64(TYPE, "r", fopen("/dev/null", "r"))));
    int folder = open(DEVICE, O_RDONLY | O_DIRECTORY);
    CHECK(is_type(openat(folder, "node_type", O_RDONLY)));
    close(folder);
    int node = open(NODE, O_RDWR | O_CLOEXEC);
    CHECK(node >= 0 && write(node, "x", 1) == 1);
    close(node);
    CHECK(open(DEVICES "/iwarp1", O_RDONLY) < 0 && errno == ENOENT);
}

static void stats(void) {
    struct stat found;
    struct stat64 found64;
    struct statx foundx;
#define IS(result, type) ((result) == 0 && (found.st_mode & S_IFMT) == (type))
#define IS64(result, type) ((result) == 0 && (found64.st_mode & S_IFMT) == (type))
    CHECK(IS(stat(NODE, &found), S_IFCHR));
    CHECK(IS64(stat64(NODE, &found64), S_IFCHR));
    CHECK(IS(lstat(DEVICE, &found), S_IFLNK));
    CHECK(IS64(lstat64(DEVICE, &found64), S_IFLNK));
    CHECK(IS(fstatat(AT_FDCWD, NODE, &found, 0), S_IFCHR));
    CHECK(IS64(fstatat64(AT_FDCWD, DEVICE, &found64, AT_SYMLINK_NOFOLLOW), S_IFLNK));
    CHECK(IS(__xstat(VERSION, NODE, &found), S_IFCHR));
    CHECK(IS64(__xstat64(VERSION, NODE, &found64), S_IFCHR));
    CHECK(IS(__lxstat(VERSION, DEVICE, &found), S_IFLNK));
    CHECK(IS64(__lxstat64(VERSION, DEVICE, &found64), S_IFLNK));
    CHECK(IS(__fxstatat(VERSION, AT_FDCWD, NODE, &found, 0), S_IFCHR));
    CHECK(IS64(__fxstatat64(VERSION, AT_FDCWD, NODE, &found64, 0), S_IFCHR));
    CHECK(statx(AT_FDCWD, NODE, 0, STATX_TYPE, &foundx) == 0 && S_ISCHR(foundx.stx_mode));
    CHECK(stat("/sys/class/net", &found) == 0 && stat("/sys/class/infiniban", &found) < 0);
    CHECK(access(NODE, R_OK | W_OK) == 0 && access(DEVICES "/iwarp1", F_OK) < 0);
    CHECK(eaccess(NODE, R_OK | W_OK) == 0 && euidaccess(NODE, R_OK | W_OK) == 0);
    CHECK(faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0) == 0);
    char value[8];
    CHECK(getxattr(TYPE, "user.x", value, sizeof value) < 0 && (errno == ENODATA || errno == ENOTSUP));
    CHECK(lgetxattr(TYPE, "user.x", value, sizeof value) < 0 && (errno == ENODATA || errno == ENOTSUP));
    CHECK(listxattr(TYPE, NULL, 0) >= 0 && llistxattr(TYPE, NULL, 0) >= 0);
}

static void links(const char *folder) {
    char to[PATH_MAX] = "", wanted[PATH_MAX + 64];
    const char *link = "../iwarp0dev/infiniband/iwarp0";
    snprintf(wanted, sizeof wanted, "%s/sys/class/iwarp0dev/infiniband/iwarp0", folder);
#define LEADS(length) ((length) == (ssize_t)strlen(link) && !memcmp(to, link, strlen(link)))
    CHECK(LEADS(readlink(DEVICE, to, sizeof to)));
    CHECK(LEADS(__readlink_chk(DEVICE, to, sizeof to, sizeof to)));
    CHECK(LEADS(readlinkat(AT_FDCWD, DEVICE, to, sizeof to)));
    CHECK(LEADS(__readlinkat_chk(AT_FDCWD, DEVICE, to, sizeof to, sizeof to)));
    CHECK(realpath(DEVICE, to) == to && !strcmp(to, wanted));
    CHECK(__realpath_chk(DEVICE, to, sizeof to) == to && !strcmp(to, wanted));
    char *found = realpath(DEVICE, NULL);
    CHECK(found && !strcmp(found, wanted));
    free(found);
    found = canonicalize_file_name(DEVICE);
    CHECK(found && !strcmp(found, wanted));
    free(found);
    CHECK(is_type(open(DEVICES "/../iwarp0dev/infiniband/iwarp0/node_type", O_RDONLY)));
    CHECK(is_type(open("/sys/class/iwarp0dev/infiniband/iwarp0/node_type", O_RDONLY)));
    CHECK(chdir(DEVICE) == 0 && is_type(open("node_type", O_RDONLY)) && chdir("/") == 0);
}

static int is_device(const struct dirent *entry) { return !strcmp(entry->d_name, "iwarp0"); }
static int is_device64(const struct dirent64 *entry) { return !strcmp(entry->d_name, "iwarp0"); }

static void folders(void) {
    int devices = 0;
    DIR *folder = opendir(DEVICES);
    CHECK(folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) devices += is_device(entry);
    CHECK(devices == 1);
    if (folder) closedir(folder);
    struct dirent **list;
    struct dirent64 **list64;
    CHECK(scandir(DEVICES, &list, is_device, alphasort) == 1);
    CHECK(scandir64(DEVICES, &list64, is_device64, alphasort64) == 1);
    CHECK(scandirat(AT_FDCWD, DEVICES, &list, is_device, alphasort) == 1);
    CHECK(scandirat64(AT_FDCWD, DEVICES, &list64, is_device64, alphasort64) == 1);
}

static void other_paths(void) { // what they return, errno, modes, and memory
    struct stat found;
    char to[8];
    const char *volatile missing = NULL;
    char made[] = "/tmp/iwarp-calls-XXXXXX";
    close(mkstemp(made));
    unlink(made);
    umask(0);
    int fd = open(made, O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(fd >= 0 && fstat(fd, &found) == 0 && (found.st_mode & 0777) == 0640);
    close(fd);
    CHECK(open(made, O_CREAT | O_EXCL | O_WRONLY, 0640) < 0 && errno == EEXIST);
    unlink(made);
    CHECK(open(missing, O_RDONLY) < 0 && errno == EFAULT);
    CHECK(stat("", &found) < 0 && errno == ENOENT);
    CHECK(opendir("/etc/passwd") == NULL && errno == ENOTDIR);
    CHECK(access("/proc/self/exe", F_OK) == 0);
    FILE *none = freopen(missing, "r", fopen("/dev/null", "r"));
    if (none) fclose(none);
    int before = allocations;
    errno = 77;
    close(open("/dev/null", O_RDONLY));
    close(open(TYPE, O_RDONLY));
    CHECK(stat(TYPE, &found) == 0 && stat("/", &found) == 0);
    CHECK(access(TYPE, R_OK) == 0 && readlink("/proc/self/exe", to, sizeof to) > 0);
    CHECK(errno == 77);
    CHECK(allocations == before);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    void *volatile memory = malloc(1);
    free(memory);
    CHECK(allocations > 0);
    opens();
    stats();
    links(argv[1]);
    folders();
    other_paths();
    puts(failures ? "wrong" : "right");
    return failures != 0;
}
