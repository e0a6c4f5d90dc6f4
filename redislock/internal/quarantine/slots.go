package quarantine

import (
	"strconv"
	"strings"
	"sync"
)

// slotOf is the slot of a key whose hash tag is all that is between its first braces.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return crc16(key) % 16384
}

// crc16 is Redis Cluster's: XMODEM, polynomial 0x1021.
func crc16(text string) (crc uint16) {
	for _, b := range []byte(text) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}

// slotTags has for each slot the least number whose text hashes to it. A slice, since the place for an
// array of 256 KB would be made when the program starts.
var slotTags = sync.OnceValue(func() []string {
	tags := make([]string, 16384)
	for i, missing := 0, len(tags); missing > 0; i++ {
		text := strconv.Itoa(i)
		if at := crc16(text) % uint16(len(tags)); tags[at] == "" {
			tags[at] = text
			missing--
		}
	}
	return tags
})

func slotTag(slot uint16) string { return slotTags()[slot] }
