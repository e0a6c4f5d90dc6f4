package serve

import _ "embed"

// openAPI describes the API. A test compares it with the routes and with the messages.
//
//go:embed openapi.json
var openAPI []byte
