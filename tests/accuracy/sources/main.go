// Goroutines that compute, talk through channels, allocate (so that the collector runs), and panic.
package main

import (
	"fmt"
	"sort"
	"strings"
)

type shape interface{ area(depth int) float64 }
type circle float64
type group []shape

//go:noinline
func (c circle) area(int) float64 { return float64(c) * 3 }

//go:noinline
func (g group) area(depth int) (sum float64) {
	for _, s := range g {
		sum += s.area(depth + 1)
	}
	return
}
func build(depth int) shape {
	if depth == 0 {
		return circle(2)
	}
	return group{build(depth - 1), build(depth - 1), build(depth - 1)}
}

//go:noinline
func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

//go:noinline
func words(n int) int {
	m := map[string]int{}
	for i := 0; i < 300; i++ {
		m[fmt.Sprintf("%x", i*n)] = i
	}
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
	return len(strings.Join(keys, " "))
}

//go:noinline
func fails(depth int) int {
	if depth == 0 {
		panic("the end")
	}
	return fails(depth-1) + 1
}
func caught() (n int) {
	defer func() { recover(); n = 1 }()
	return fails(20)
}
func works(results chan int, n int) {
	for ; ; n++ {
		switch n % 4 {
		case 0:
			results <- int(build(5).area(0))
		case 1:
			results <- fib(18)
		case 2:
			results <- words(n)
		default:
			results <- caught()
		}
	}
}
func main() {
	results := make(chan int)
	for i := 0; i < 4; i++ {
		go works(results, i)
	}
	sum := 0
	for r := range results {
		sum += r
	}
}
