//go:build unix && !linux && !darwin

package bound

import "errors"

func family(int) (relation, error) { return relation{}, errors.ErrUnsupported }
