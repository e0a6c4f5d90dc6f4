package secrets

import "testing"

func TestSpans(t *testing.T) {
	for in, want := range map[string]string{
		"redis://:s3cret@h:6379":             "redis://xxxxxxx@h:6379",
		"--store=redis://ana:s3@cr/et?@h?a=": "--store=redis://xxxxxxxxxxxxx@h?xx",
		"file:///x?pass=s":                   "file:///x?xxxxxx",
		"--note=a@b?c":                       "--note=a@b?c",
		"file:///x?":                         "file:///x?",
		"redis://@h":                         "redis://@h",
	} {
		b := []byte(in)
		for _, s := range spans(in) {
			for i := s[0]; i < s[1]; i++ {
				b[i] = 'x'
			}
		}
		if string(b) != want {
			t.Errorf("%s: %s, want %s", in, b, want)
		}
	}
}
