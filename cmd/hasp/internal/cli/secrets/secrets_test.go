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

func TestInValue(t *testing.T) {
	for value, want := range map[string]bool{
		"redis://h": false, "redis://ana@h": false, "redis://:s3cret@h": true, "redis://ana:s3#cret@h:1": true,
		"redis://h?sentinel_password=x": true, "mysql://h/db?password_file=/run/secret": false, "postgres://h/db?passfile=/x": false,
		"postgres://h/db?sslpassword=x": true, "redis://h?password=a;b": true, "redis://h?x=1;password=s": true, "mysql://h/db?password_file=/x;y": false, "30s": false, "50%": false, "redis://ana:50%@h": true,
		"hasp+https://t0ken@h": true, "hasp+http://t0ken@127.0.0.1": true, "hasp+https://h": false, "hasp+https://h?token_file=/x": false,
	} {
		if got := InValue(value); got != want {
			t.Errorf("%s: %t", value, got)
		}
	}
}
