package doctor

import (
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// Product is a server or a service that speaks the protocol of a store and is not the program that
// the driver was made for. The page of the store has the same table.
type Product struct {
	Name       string
	sign, text string
	refused    bool
}

// Refused is one on which a promise cannot hold, and why. What it says of itself contains the sign.
func Refused(name, sign, why string) Product { return Product{name, sign, why, true} }

// Untested is one that hasp was never run on, with what its documentation says.
func Untested(name, sign, text string) Product { return Product{name, sign, text, false} }

// Recognise finds the product by the version text of a server, in capitals or not; the first that
// fits counts.
func Recognise(all []Product, version string) (p Product, found bool) {
	version = strings.ToLower(version)
	for _, p := range all {
		if strings.Contains(version, strings.ToLower(p.sign)) {
			return p, true
		}
	}
	return Product{}, false
}

// Refuse is the error of opening a store where a promise cannot hold.
func Refuse(all []Product, version string) error {
	if p, _ := Recognise(all, version); p.refused {
		return fmt.Errorf("%w: the server is %s, on which a lock would not hold: %s; choose another store", driver.ErrInvalid, p.Name, p.text)
	}
	return nil
}

// Product warns of a product that hasp was never run on.
func (r *Report) Product(all []Product, version string) {
	p, found := Recognise(all, version)
	r.When(found, driver.Warn, "product", p.Name+", on which hasp was never run: "+p.text, "judge it by hasp-torture before you rely on it")
}
