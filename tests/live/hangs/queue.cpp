// A C++ program whose consumer waits for a condition variable that no thread notifies.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

using Job = std::map<std::string, std::vector<std::unique_ptr<std::deque<long>>>>;

template <class T> class Queue {
public:
    [[gnu::noinline]] T pop() {
        std::unique_lock<std::mutex> lock(mutex);
        while (items.empty()) filled.wait(lock);
        T item = std::move(items.front());
        items.pop_front();
        return item;
    }

private:
    std::mutex mutex;
    std::condition_variable filled;
    std::deque<T> items;
};

[[gnu::noinline]] void consume(Queue<Job> &queue) {
    prctl(PR_SET_NAME, "consumer");
    for (;;) queue.pop();
}

int main(int, char **argv) {
    Queue<Job> queue;
    prctl(PR_SET_PDEATHSIG, 9);
    std::thread consumer(consume, std::ref(queue));
    dprintf(atoi(argv[2]), "ready %d\n", getpid());
    consumer.join();
}
