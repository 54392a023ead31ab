/* What TCP over loopback can do on this machine: two processes, blocking sockets, nothing in between.
 *
 *   tcp_pair bandwidth CONGESTION RECEIVE_BUFFER SECONDS    prints bytes per second, with sends of 1 MiB
 *   tcp_pair latency   CONGESTION RECEIVE_BUFFER SECONDS    prints the median round trip of 1 KiB between two
 *                                                           cores, in seconds
 *
 * CONGESTION is a name as in net.ipv4.tcp_available_congestion_control, or "default" for the kernel's choice;
 * RECEIVE_BUFFER is SO_RCVBUF in bytes, or 0 for the kernel's own tuning.
 * tests/bench/tcp_pair.py is the same program in Python; limits.py runs either. A measuring stick: no part of Neve
 * is written in C.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SEND_BYTES = 1 << 20, PING_BYTES = 1 << 10, PINGS_MAX = 1 << 20, PINGS_WARM_UP = 200 };

static void die(const char *what)
{
    fprintf(stderr, "tcp_pair: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Run on the allowed core of this rank. On a busy machine the scheduler puts a pair that takes turns on one core, where
 * a round trip is 16 us instead of 100: true, but not what two busy processes will ever see. */
static void stay_on_core(int rank)
{
    cpu_set_t allowed, chosen;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        die("sched_getaffinity");
    if (CPU_COUNT(&allowed) < 2)
        return;
    CPU_ZERO(&chosen);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && rank-- == 0)
            CPU_SET(core, &chosen);
    if (sched_setaffinity(0, sizeof chosen, &chosen) < 0)
        die("sched_setaffinity");
}

static int make_socket(const char *congestion, int receive_buffer)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        die("TCP_NODELAY");
    if (strcmp(congestion, "default") != 0
        && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) < 0)
        die(congestion);
    if (receive_buffer > 0
        && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer) < 0)
        die("SO_RCVBUF");
    return fd;
}

static void send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0)
            die("send");
        bytes += sent;
        size -= (size_t)sent;
    }
}

/* False when the peer has closed. */
static int receive_all(int fd, char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t got = recv(fd, bytes, size, 0);
        if (got < 0)
            die("recv");
        if (got == 0)
            return 0;
        bytes += got;
        size -= (size_t)got;
    }
    return 1;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void send_for(int fd, char *buffer, double seconds)
{
    double end_s = now_s() + seconds;
    while (now_s() < end_s)
        send_all(fd, buffer, SEND_BYTES);
}

/* Timed where the bytes arrive: what only filled a socket's buffer was not moved. */
static void print_bandwidth(int fd, char *buffer)
{
    ssize_t got = recv(fd, buffer, SEND_BYTES, 0);
    double start_s = now_s(), total = 0;
    while ((got = recv(fd, buffer, SEND_BYTES, 0)) > 0)
        total += (double)got;
    if (got < 0)
        die("recv");
    printf("%.0f\n", total / (now_s() - start_s));
}

static void echo(int fd, char *buffer)
{
    while (receive_all(fd, buffer, PING_BYTES))
        send_all(fd, buffer, PING_BYTES);
}

static void print_latency(int fd, char *buffer, double seconds)
{
    double *took_s = malloc(PINGS_MAX * sizeof *took_s);
    if (took_s == NULL)
        die("malloc");
    double end_s = now_s() + seconds;
    size_t pings = 0;
    for (int i = 0; pings == 0 || (pings < PINGS_MAX && now_s() < end_s); i++) {
        double start_s = now_s();
        send_all(fd, buffer, PING_BYTES);
        if (!receive_all(fd, buffer, PING_BYTES))
            die("the echo closed");
        if (i >= PINGS_WARM_UP)
            took_s[pings++] = now_s() - start_s;
    }
    qsort(took_s, pings, sizeof *took_s, compare_doubles);
    printf("%.9f\n", took_s[pings / 2]);
    free(took_s);
}

int main(int argc, char **argv)
{
    int bandwidth = argc == 5 && strcmp(argv[1], "bandwidth") == 0;
    int latency = argc == 5 && strcmp(argv[1], "latency") == 0;
    if (!bandwidth && !latency) {
        fprintf(stderr, "usage: tcp_pair bandwidth|latency CONGESTION RECEIVE_BUFFER SECONDS\n");
        return 2;
    }
    const char *congestion = argv[2];
    int receive_buffer = atoi(argv[3]);
    double seconds = atof(argv[4]);
    char *buffer = malloc(SEND_BYTES);
    if (buffer == NULL)
        die("malloc");
    memset(buffer, 'n', SEND_BYTES);

    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_size = sizeof address;
    int listener = make_socket(congestion, receive_buffer); /* what it accepts inherits its options */
    if (bind(listener, (struct sockaddr *)&address, address_size) < 0 || listen(listener, 1) < 0
        || getsockname(listener, (struct sockaddr *)&address, &address_size) < 0)
        die("listen");

    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* an interrupted benchmark leaves nobody sending */
        int fd = make_socket(congestion, receive_buffer);
        if (connect(fd, (struct sockaddr *)&address, address_size) < 0)
            die("connect");
        if (bandwidth) {
            send_for(fd, buffer, seconds);
        } else {
            stay_on_core(1);
            echo(fd, buffer);
        }
        _exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    if (bandwidth) {
        print_bandwidth(fd, buffer);
    } else {
        stay_on_core(0);
        print_latency(fd, buffer, seconds);
    }
    close(fd);
    int status = 0;
    if (waitpid(child, &status, 0) < 0)
        die("waitpid");
    return status == 0 ? 0 : 1;
}
