// Package empty stands for a dependency that staticcheck need not read.
package empty
