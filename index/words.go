package index

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// WordKind tells in which sense a message has a word: it can be asked for in that sense only.
type WordKind byte

const (
	WordKey    WordKind = 'K' // one of its keys
	WordUnique WordKind = 'U' // its unique id
	WordTag    WordKind = 'T' // its tag
)

// Hash is what the index keeps of a word of a topic: FNV-1a, 64 bits, over the topic's id (big-endian), the kind and the word.
// Different words may have one hash, so whoever finds a message by it looks at the message.
func Hash[S ~string | ~[]byte](topic ids.TopicID, kind WordKind, word S) uint64 {
	const basis, prime = 14695981039346656037, 1099511628211
	h := uint64(basis)
	for shift := 24; shift >= 0; shift -= 8 {
		h = (h ^ uint64(byte(topic>>shift))) * prime
	}
	h = (h ^ uint64(kind)) * prime
	for i := range len(word) {
		h = (h ^ uint64(word[i])) * prime
	}
	return h
}

// wordEntry is one message of one word: 12 bytes in a file, in ascending order of hash and place.
type wordEntry struct {
	hash uint64
	at   uint32 // physical offset of the RocketMQ record, from the segment's base
}

func (e wordEntry) compare(o wordEntry) int {
	if c := cmp.Compare(e.hash, o.hash); c != 0 {
		return c
	}
	return cmp.Compare(e.at, o.at)
}

func (e wordEntry) append(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(dst, e.hash), e.at)
}

func decodeWord(b []byte) wordEntry {
	_ = b[wordSize-1]
	return wordEntry{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}
}

// memWords are the words of a run in memory: a list in the order of arrival, chained by hash. Entries do not change, so that a
// reader needs the lock only to take hold of them.
type memWords struct {
	chunks []*[wordChunk]memWord
	n      uint32
	heads  []uint32 // by the low bits of the hash: number of the newest entry, from 1; 0 none
}

// memWord is an entry; prev is the number of the one before it in its chain, from 1, 0 none.
type memWord struct {
	wordEntry
	prev uint32
}

const (
	wordChunk = 1024
	minHeads  = 1 << 10
	maxHeads  = 1 << 20
	maxScan   = 16 // words of one message that are compared one by one
)

// newMemWords makes room for about as many words as the run before had: the number of chains stays, which costs longer ones when there are more.
func newMemWords(like uint32) memWords {
	n := minHeads
	for n < maxHeads && uint32(n) < like {
		n *= 2
	}
	return memWords{heads: make([]uint32, n)}
}

// add appends a message's words, each once. It may change the order of hashes.
func (w *memWords) add(at uint32, hashes []uint64) {
	if len(hashes) > maxScan {
		slices.Sort(hashes)
		hashes = slices.Compact(hashes)
	} else {
		for i := 1; i < len(hashes); i++ {
			if slices.Contains(hashes[:i], hashes[i]) {
				hashes = append(hashes[:i], hashes[i+1:]...)
				i--
			}
		}
	}
	for _, h := range hashes {
		i := w.n % wordChunk
		if i == 0 {
			w.chunks = append(w.chunks, new([wordChunk]memWord))
		}
		head := &w.heads[h&uint64(len(w.heads)-1)]
		w.chunks[len(w.chunks)-1][i] = memWord{wordEntry{h, at}, *head}
		w.n++
		*head = w.n
	}
}

// chain is where a walk begins that sees what was there when it was made.
type chain struct {
	chunks []*[wordChunk]memWord
	head   uint32
}

func (w *memWords) chain(h uint64) chain {
	return chain{w.chunks, w.heads[h&uint64(len(w.heads)-1)]}
}

// walk calls visit for the places of the messages with hash h in [from, to), newest first, until it returns false; then it does too.
func (c chain) walk(h uint64, from, to uint64, visit func(at uint32) bool) bool {
	for n := c.head; n != 0; {
		e := &c.chunks[(n-1)/wordChunk][(n-1)%wordChunk]
		if uint64(e.at) < from {
			return true // what comes before it in the chain lies before it in the log
		}
		if e.hash == h && uint64(e.at) < to && !visit(e.at) {
			return false
		}
		n = e.prev
	}
	return true
}

// sorted returns the words in the order of a file.
func (w *memWords) sorted() []wordEntry {
	all := make([]wordEntry, 0, w.n)
	for n := range w.n {
		all = append(all, w.chunks[n/wordChunk][n%wordChunk].wordEntry)
	}
	slices.SortFunc(all, wordEntry.compare)
	return all
}

// wordLevel is one level of the tree of words in a file: pages of entries, each level the first entries of the pages of the one
// below it, the last one a single page.
type wordLevel struct {
	page  int64  // first page
	count uint32 // entries
}

// wordLevels appends the levels for n words to dst, the words themselves first. page is the first page.
func wordLevels(dst []wordLevel, n uint32, page int64) []wordLevel {
	for n > 0 {
		dst = append(dst, wordLevel{page, n})
		size := pages(n, wordsPerPage)
		if size == 1 {
			break
		}
		page += size
		n = uint32(size)
	}
	return dst
}

// levels are the levels of a file; five are enough for 4 billion words.
func (h *header) levels() []wordLevel {
	return wordLevels(make([]wordLevel, 0, 5), h.words, h.fencePage()+h.fencePages())
}

// onPage is how many entries of the level page n of it has.
func (l wordLevel) onPage(n uint32) int {
	return int(min(wordsPerPage, l.count-n*wordsPerPage))
}

// walkWords is chain.walk for a file. It reads a page of each level, and those behind it as long as it goes on.
func (x *file) walkWords(h uint64, from, to uint64, visit func(at uint32) bool) (more bool, err error) {
	levels := x.levels()
	if len(levels) == 0 {
		return true, nil
	}
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	var n uint32 // page of the level
	i := 0       // entries on it that come before the end of the walk
	for at := len(levels) - 1; at >= 0; at-- {
		l := levels[at]
		if err := x.page(p, l.page+int64(n)); err != nil {
			return false, err
		}
		lo, hi := 0, l.onPage(n)
		for lo < hi {
			mid := int(uint(lo+hi) >> 1)
			if e := decodeWord(p[mid*wordSize:]); e.hash < h || e.hash == h && uint64(e.at) < to {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if lo == 0 {
			return true, nil
		}
		i = lo
		if at > 0 {
			n = n*wordsPerPage + uint32(lo-1) // that many pages has the level below
		}
	}
	for {
		for i > 0 {
			i--
			e := decodeWord(p[i*wordSize:])
			if e.hash != h || uint64(e.at) < from {
				return true, nil
			}
			if !visit(e.at) {
				return false, nil
			}
		}
		if n == 0 {
			return true, nil
		}
		n--
		if err := x.page(p, levels[0].page+int64(n)); err != nil {
			return false, err
		}
		i = wordsPerPage
	}
}

// wordCursor walks the words of a slot in the order of a file.
type wordCursor struct {
	list []wordEntry // of a run in memory
	x    *file
	n    uint32
	p    page
}

func (s slot) words() *wordCursor {
	if s.mem != nil {
		return &wordCursor{list: s.mem.words.sorted()}
	}
	return &wordCursor{x: s.file}
}

func (c *wordCursor) next() (e wordEntry, ok bool, err error) {
	if c.x == nil {
		if len(c.list) == 0 {
			return e, false, nil
		}
		e, c.list = c.list[0], c.list[1:]
		return e, true, nil
	}
	if c.n == c.x.header.words {
		return e, false, nil
	}
	i := c.n % wordsPerPage
	if i == 0 {
		if err := c.x.page(&c.p, c.x.fencePage()+c.x.fencePages()+int64(c.n/wordsPerPage)); err != nil {
			return e, false, err
		}
	}
	c.n++
	return decodeWord(c.p[i*wordSize:]), true, nil
}

// mergeWords calls visit for the words of the slots, which are neighbours in ascending order, in the order of a file.
func mergeWords(from []slot, visit func(wordEntry) error) error {
	type head struct {
		*wordCursor
		wordEntry
		ok bool
	}
	heads := make([]head, len(from))
	for i, s := range from {
		heads[i].wordCursor = s.words()
		var err error
		if heads[i].wordEntry, heads[i].ok, err = heads[i].next(); err != nil {
			return err
		}
	}
	for {
		least := -1
		for i := range heads {
			if heads[i].ok && (least < 0 || heads[i].compare(heads[least].wordEntry) < 0) {
				least = i
			}
		}
		if least < 0 {
			return nil
		}
		h := &heads[least]
		if err := visit(h.wordEntry); err != nil {
			return err
		}
		var err error
		if h.wordEntry, h.ok, err = h.next(); err != nil {
			return err
		}
	}
}

// verifyWords checks that the words ascend, and that each level names the pages of the one below it.
func (x *file) verifyWords() error {
	p := pagePool.Get().(*page)
	defer pagePool.Put(p)
	var above []wordEntry
	for li, l := range x.levels() {
		var firsts []wordEntry
		var last wordEntry
		for n := range uint32(pages(l.count, wordsPerPage)) {
			at := l.page + int64(n)
			if err := x.page(p, at); err != nil {
				return err
			}
			for i := range l.onPage(n) {
				e := decodeWord(p[i*wordSize:])
				switch number := n*wordsPerPage + uint32(i); {
				case number > 0 && last.compare(e) >= 0:
					return &CorruptionError{x.name, at, fmt.Errorf("word %d is out of order", number)}
				case li > 0 && above[number] != e:
					return &CorruptionError{x.name, at, fmt.Errorf("it does not name page %d of the words below it", number)}
				case i == 0:
					firsts = append(firsts, e)
				}
				last = e
			}
		}
		above = firsts
	}
	return nil
}

// HoleError is returned by Find when it comes to a part of the log that is not indexed, newest first: what it told before is right, what lies
// at Hole or before it is not known until Rebuild has filled the hole.
type HoleError struct{ Hole Span }

func (e *HoleError) Error() string {
	return fmt.Sprintf("the index has a hole from %d to %d", e.Hole.From, e.Hole.To)
}

// Find calls visit with the physical offset of each message that was added with the hash, newest first, in [from, to), until it returns
// false. It reads up to a page for each level of each file, three for 40 million words, and one more for each 341 messages. It returns a
// *HoleError where the index is not whole, and a *CorruptionError as Get does.
func (x *Index) Find(hash uint64, from, to ids.PhysicalOffset, visit func(ids.PhysicalOffset) bool) error {
	x.mu.RLock()
	if x.closed {
		x.mu.RUnlock()
		return ErrClosed
	}
	v := x.version
	v.refs.Add(1)
	from, to = max(from, x.front), min(to, x.known())
	var active wordPart
	if m := x.active; m != nil {
		active = wordPart{Span: Span{m.from, x.added}, chain: m.words.chain(hash), mem: true}
	}
	x.mu.RUnlock()
	defer v.unref()

	parts := make([]wordPart, 0, len(v.slots)+1)
	for _, s := range v.slots {
		f, t := s.span()
		if f >= active.From && active.mem {
			parts = append(parts, active)
			active.mem = false
		}
		p := wordPart{Span: Span{f, t}, file: s.file}
		if s.mem != nil {
			p.chain, p.mem = s.mem.words.chain(hash), true
		}
		parts = append(parts, p)
	}
	if active.mem {
		parts = append(parts, active)
	}
	at := to // what lies at or after it is done
	for _, p := range slices.Backward(parts) {
		if at <= from {
			return nil
		}
		if p.From >= at {
			continue
		}
		switch {
		case p.To < at:
			return &HoleError{Span{max(p.To, from), at}}
		case !p.mem && !p.file.worded:
			return &HoleError{Span{max(p.From, from), at}}
		}
		base := x.o.base(p.From)
		lo, hi := uint64(max(from, p.From)-base), uint64(at-base)
		tell := func(n uint32) bool { return visit(base + ids.PhysicalOffset(n)) }
		more, err := true, error(nil)
		if p.mem {
			more = p.chain.walk(hash, lo, hi, tell)
		} else {
			more, err = p.file.walkWords(hash, lo, hi, tell)
		}
		if err != nil {
			return x.giveUp(err)
		}
		if !more {
			return nil
		}
		at = p.From
	}
	if at > from {
		return &HoleError{Span{from, at}}
	}
	return nil
}

// wordPart is a span of the log with its words, in memory or in a file.
type wordPart struct {
	Span
	file  *file
	chain chain
	mem   bool
}

// known is the end of what the index may know. x.mu is held.
func (x *Index) known() ids.PhysicalOffset {
	end := x.added
	if n := len(x.version.slots); n > 0 { // after Open files may reach further, beyond a hole
		_, to := x.version.slots[n-1].span()
		end = max(end, to)
	}
	return end
}

// maxActiveWords is how many words the active run may have before it should be spilled: 16 MiB.
const maxActiveWords = 1 << 20

// Full tells that the active run has grown large, by messages with many keys, and that a Checkpoint should be made early.
func (x *Index) Full() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.active != nil && x.active.words.n >= maxActiveWords
}

// Bytes returns the size of the index: of its files, and how much of that are the words. What is in memory alone does not count.
func (x *Index) Bytes() (all, words int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, s := range x.version.slots {
		if s.file != nil {
			all += s.file.pages() * pageSize
			words += s.file.wordPages() * pageSize
		}
	}
	return all, words
}
