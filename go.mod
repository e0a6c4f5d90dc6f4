module github.com/hasplock/hasp

go 1.25.0
