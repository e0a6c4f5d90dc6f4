package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
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
			return fmt.Sprintf("unknown flag %q in -%s (long flags take two dashes)", "-"+unknown.GetSpecifiedName(), view.Quietly(letters))
		}
		return "unknown flag --" + view.Quietly(unknown.GetSpecifiedName())
	case errors.As(err, &invalid):
		return fmt.Sprintf("--%s: %s: %v", invalid.GetFlag().Name, view.Quote(invalid.GetValue()), invalid.Unwrap())
	case errors.As(err, &missing):
		return fmt.Sprintf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &syntax):
		return "bad flag " + view.Quote(syntax.GetSpecifiedFlag())
	}
	return view.Quietly(err.Error())
}
