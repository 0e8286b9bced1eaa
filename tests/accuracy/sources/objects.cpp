// Exceptions thrown through many frames, virtual calls, deep recursion, containers, std::function, iostreams.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define KEEP __attribute__((noinline))
static std::mt19937 random_numbers(1);
static volatile unsigned long sink;

struct Shape { virtual ~Shape() = default; virtual double area(int depth) const = 0; };
struct Circle : Shape { double r = 1; KEEP double area(int) const override { return 3.14 * r * r; } };
struct Square : Shape { double a = 2; KEEP double area(int depth) const override { return depth ? a * a + Circle().area(0) : a; } };
struct Group : Shape {
    std::vector<std::unique_ptr<Shape>> parts;
    explicit Group(int depth) {
        for (int i = 0; i < 3; i++)
            if (depth) parts.push_back(std::make_unique<Group>(depth - 1));
            else if (i & 1) parts.push_back(std::make_unique<Circle>());
            else parts.push_back(std::make_unique<Square>());
    }
    KEEP double area(int depth) const override {
        double sum = 0;
        for (auto &part : parts) sum += part->area(depth + 1);
        return sum;
    }
};

struct Guard { std::string text; explicit Guard(int n) : text(40, char('a' + n % 26)) {} ~Guard() { sink = sink + text.size(); } };
KEEP static int throws(int depth) {
    Guard guard(depth);
    if (!depth) throw std::runtime_error("the end " + guard.text);
    return throws(depth - 1) + 1;
}
KEEP static void catches(int depth) {
    try { throws(depth); } catch (const std::logic_error &) { sink = 0; } catch (const std::exception &e) { sink = sink + e.what()[0]; }
}
KEEP static int ackermann(int m, int n) { return m ? ackermann(m - 1, n ? ackermann(m, n - 1) : 1) : n + 1; }
KEEP static void maps() {
    std::map<std::string, int> count;
    for (int i = 0; i < 300; i++) count[std::to_string(random_numbers() % 1000)]++;
    std::vector<std::pair<std::string, int>> v(count.begin(), count.end());
    std::stable_sort(v.begin(), v.end(), [](const auto &a, const auto &b) { return a.second < b.second; });
    sink = sink + v.size();
}
KEEP static void streams() {
    std::ostringstream out;
    for (int i = 0; i < 100; i++) out << i << ' ' << i / 7.0 << '\n';
    std::istringstream in(out.str());
    double x, sum = 0;
    while (in >> x) sum += x;
    sink = sink + static_cast<unsigned long>(sum);
}
KEEP static void regexes() {
    static const std::regex pattern("([a-z]+)-([0-9]+)*x?y");
    sink = sink + std::regex_search(std::string("aaaa bbbb-12345 cccc-999xy dddd"), pattern);
}
static const std::function<void()> jobs[] = {
    [] { Group group(4); sink = sink + static_cast<unsigned long>(group.area(0)); },
    [] { catches(static_cast<int>(random_numbers() % 60)); },
    [] { sink = sink + ackermann(2, static_cast<int>(random_numbers() % 150)); },
    maps, streams, regexes,
};
int main() { for (;;) jobs[random_numbers() % 6](); }
