// A program that comes with a libibverbs of its own, in three parts: COPY is the library, without a device; TRANSPORT a
// library that calls it; and the program prints the first device that this finds.
#include <stdio.h>

struct ibv_device;
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
const char *first_device(void);

#ifdef COPY
struct ibv_device **ibv_get_device_list(int *count) {
    *count = 0;
    return NULL;
}
void ibv_free_device_list(struct ibv_device **list) { (void)list; }
const char *ibv_get_device_name(struct ibv_device *device) { return device ? "of the copy" : NULL; }
#elif defined(TRANSPORT)
const char *first_device(void) {
    static char name[64];
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    snprintf(name, sizeof name, "%s", count > 0 ? ibv_get_device_name(list[0]) : "no device");
    if (list) ibv_free_device_list(list);
    return name;
}
#else
int main(void) { return puts(first_device()) < 0; }
#endif
