package httpapi_test

import (
	"testing"

	"github.com/hasplock/hasp/internal/httpapi"
)

func TestDecode(t *testing.T) {
	for body, name := range map[string]string{
		`{"name":"a"}`:                              "a",
		"{\"name\":\"\u00e9\ufffd\"}\n ":            "\u00e9\ufffd",
		`{"n\u0061me":"\u00e9\ud83d\ude00\\ud800"}`: "\u00e9\U0001F600" + `\ud800`,
		`{"name":"\\\\ud800","units":1}`:            `\\ud800`,
		`{}`:                                        "",
	} {
		var in httpapi.AdoptLock
		if err := httpapi.Decode([]byte(body), &in); err != nil || in.Name != name {
			t.Errorf("%s: %q, %v", body, in.Name, err)
		}
	}
	for _, body := range []string{
		"{\"name\":\"\xff\"}", `{"name":"\ud800"}`, `{"name":"\udc00\ud800"}`, `{"name":"\ud83d"`, `{"name":"\ud83dx\ude00"}`, `{"name":"\ud83d\ud83d\ude00"}`, `{"name":"\\\udc00"}`,
		`{"name":"a"}}`, `{"name":"a"}]`, `{"name":"a"}{}`, `{"name":"a"} x`, `{"name":"a","name":"b"}`, `{"name":"a","n\u0061me":"b"}`,
		`{"Name":"a"}`, `{"name":"a","NAME":"b"}`, `{"name":"a","nowait":true}`, `{"Acquire":{"name":"a"}}`, `["a"]`, `null`, `"a"`, `{"name":"a"`, `{"name":1}`, ``, `{"name"}`,
	} {
		var in httpapi.AdoptLock
		if err := httpapi.Decode([]byte(body), &in); err == nil {
			t.Errorf("%s: taken as %+v", body, in)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"name":"\ud83d\ude00"}`)
	f.Fuzz(func(t *testing.T, body string) {
		var in httpapi.AdoptLock
		_ = httpapi.Decode([]byte(body), &in) // it does not panic
	})
}
