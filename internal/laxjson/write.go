package laxjson

import (
	"encoding/json"
	"iter"
)

// AppendObjectMap appends a map with objects as keys in the form that RocketMQ's Java programs write and read, {{"queueId":0}:7}, and
// which no JSON encoder can write. It panics on values that encoding/json cannot write: they come from code.
func AppendObjectMap(dst []byte, entries iter.Seq2[any, any]) []byte {
	dst = append(dst, '{')
	first := true
	for k, v := range entries {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, mustText(k)...)
		dst = append(dst, ':')
		dst = append(dst, mustText(v)...)
	}
	return append(dst, '}')
}

func mustText(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("laxjson: " + err.Error())
	}
	return text
}
