package broker

import "slices"

// least keeps the n smallest of what it is given, n > 0: a heap with the greatest of them on top.
type least[T any] struct {
	n       int
	compare func(a, b *T) int
	heap    []T
}

func (l *least[T]) add(x T) {
	if len(l.heap) < l.n {
		l.heap = append(l.heap, x)
		for i := len(l.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if l.compare(&l.heap[i], &l.heap[up]) <= 0 {
				return
			}
			l.heap[i], l.heap[up] = l.heap[up], l.heap[i]
			i = up
		}
		return
	}
	if l.compare(&x, &l.heap[0]) >= 0 {
		return
	}
	l.heap[0] = x
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(l.heap) {
			return
		}
		if down+1 < len(l.heap) && l.compare(&l.heap[down+1], &l.heap[down]) > 0 {
			down++
		}
		if l.compare(&l.heap[down], &l.heap[i]) <= 0 {
			return
		}
		l.heap[i], l.heap[down] = l.heap[down], l.heap[i]
		i = down
	}
}

// sorted returns what was kept, the smallest first, and ends l.
func (l *least[T]) sorted() []T {
	slices.SortFunc(l.heap, func(a, b T) int { return l.compare(&a, &b) })
	return l.heap
}
