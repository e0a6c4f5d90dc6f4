package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
)

// describeFlagError says what is wrong with a flag, in one line. pflag's own messages
// quote what they were given, and that may be a store's URL with its password.
func describeFlagError(err error) string {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		syntax  *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown):
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			letters, _, _ := strings.Cut(short, "=")
			return fmt.Sprintf("unknown flag %q in -%s (long flags take two dashes)", "-"+unknown.GetSpecifiedName(), quietly(letters))
		}
		return "unknown flag --" + quietly(unknown.GetSpecifiedName())
	case errors.As(err, &invalid):
		return fmt.Sprintf("--%s: %s: %v", invalid.GetFlag().Name, quoteArg(invalid.GetValue()), invalid.Unwrap())
	case errors.As(err, &missing):
		return fmt.Sprintf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &syntax):
		return "bad flag " + quoteArg(syntax.GetSpecifiedFlag())
	}
	return quietly(err.Error())
}

// quoteArg quotes an argument for a message, unless it could be a store's URL.
func quoteArg(s string) string {
	if strings.Contains(s, "://") || strings.Contains(s, "@") {
		return "(a URL or address, not shown)"
	}
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.Quote(s)
}

// quietly is quoteArg without the quotes.
func quietly(s string) string {
	if q := quoteArg(s); strings.HasPrefix(q, "(") {
		return q
	}
	return clean(s)
}

// clean makes other people's text safe for a terminal: a note must not be able to move the cursor,
// set the title or forge a line.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// oneLine joins the lines of a message, and cleans it.
func oneLine(s string) string {
	return clean(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}
