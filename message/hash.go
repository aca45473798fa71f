package message

// JavaHash is Java's String.hashCode: over UTF-16 units, with 32-bit overflow.
func JavaHash(s string) int32 {
	var h uint32
	for _, r := range s {
		if r >= 0x10000 {
			r -= 0x10000
			h = 31*h + uint32(0xD800+r>>10)
			r = 0xDC00 + r&0x3FF
		}
		h = 31*h + uint32(r)
	}
	return int32(h)
}

// TagsCode is what the queue index keeps of a message's tags: their hash, sign-extended, and 0 without tags.
func TagsCode(tags string) int64 { return int64(JavaHash(tags)) }
