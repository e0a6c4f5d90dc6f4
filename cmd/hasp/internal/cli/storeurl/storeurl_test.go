//go:build unix

package storeurl

import "testing"

func at(text string) *URL {
	s := new(URL)
	_ = s.Set(text) // it takes any text
	return s
}

func TestPublicURL(t *testing.T) {
	for in, want := range map[string]string{
		"file:///var/lib/hasp":                            "file:///var/lib/hasp",
		"redis://:s3cret@h:6379?strategy=setnx":           "redis://h:6379?strategy=setnx",
		"postgres://ana:s3cret@h/db?sslmode=a&PassWord=x": "postgres://h/db?sslmode=a",
		"etcd://a,b?authToken=s3cret&ttl=3s":              "etcd://a,b?ttl=3s",
		"redis://ana@h?b=2&a=1":                           "redis://h?b=2&a=1",
		"redis://h:port":                                  "",
		"redis://h?password=a;b&x=1":                      "redis://h?x=1",
		"redis://h?x=1;password=s":                        "redis://h",
		"redis://h?pass%77ord=s&x=1":                      "redis://h?x=1",
		"redis://h?pass%ZZword=s":                         "redis://h",
	} {
		if got := at(in).Public(); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		} else if again := at(got).Public(); again != got {
			t.Errorf("%s, for a nested hasp: %s", got, again)
		}
	}
}

// What is only looked at makes no directory and no tables.
func TestLookOnly(t *testing.T) {
	dir := t.TempDir()
	for _, x := range []struct {
		url, want string
	}{
		{"file://" + dir, "file://" + dir},
		{"file://" + dir + "/not/there", ""},
		{"postgres://u:secret@h/db?prefix=p_", "postgres://u:secret@h/db?migrate=false&prefix=p_"},
		{"mysql://h/db?migrate=true", "mysql://h/db?migrate=false"},
		{"postgres://h/db?a=%zz", ""},
		{"redis://h", "redis://h"},
		{"nothing", ""},
	} {
		got, ok := at(x.url).LookOnly()
		if ok != (x.want != "") || ok && got != x.want {
			t.Errorf("%s: %q, %t", x.url, got, ok)
		}
	}
}
